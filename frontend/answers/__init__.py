"""Chunks of text made into what each route answers."""
