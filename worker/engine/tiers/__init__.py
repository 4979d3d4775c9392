"""Keeps pages of keys and values outside the pool: written to disk, checked when they are read."""
