"""Writes the Grafana dashboard of a running service."""
