"""Runs a cross-encoder, which computes whole texts at once and keeps no keys and values."""
