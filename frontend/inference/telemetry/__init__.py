"""This package records each request: a line in the access log, a span, and a place among the recent
ones."""
