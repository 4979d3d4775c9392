"""This package speaks HTTP: listener, connections, reading of requests, errors and JSON as
responses."""
