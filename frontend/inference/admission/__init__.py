"""This package decides whether a request may come in, and what a refused client is told."""
