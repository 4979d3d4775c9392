"""Decides how many more requests this worker can take, and keeps those that it has from being
redelivered."""
