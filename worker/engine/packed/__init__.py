"""Weights on disk as kernels want them: found by what they are made of, and mapped into memory."""
