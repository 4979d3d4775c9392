"""Beam search: several likely outputs of one prompt, grown side by side."""
