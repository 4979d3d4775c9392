"""The name of this role in heartbeats and logs."""

ROLE = "frontend"
