"""Reads the state of a service as one snapshot, for the page, commands, operators and metrics."""
