"""This package holds classes of texts, and vectors as they are: two bodies, and their answers."""
