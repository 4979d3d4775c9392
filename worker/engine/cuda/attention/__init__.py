"""Attention over pages on a GPU: which kernels compute it, and how each is planned."""
