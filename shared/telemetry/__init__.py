"""Logs, metrics and traces of every role."""
