"""Moves a role's connections away from a NATS server that is cut off from its peers."""
