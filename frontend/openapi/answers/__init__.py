"""JSON Schema of whole answers; the events of a stream have the same fields in pieces."""
