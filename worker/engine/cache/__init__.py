"""Keeps account of keys and values: pages, rows of requests, and prefixes already computed."""
