"""A step as a GPU reads it: its shape, its rows, and how its attention is divided."""
