"""The connection of a role to NATS, which reconnects for ever and reports its state."""
