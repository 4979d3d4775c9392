"""Counts and measures what a worker does, for its metrics and its card."""
