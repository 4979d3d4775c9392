"""This package is HTTP itself: listener, connections, reading of requests, errors and JSON as
responses."""
