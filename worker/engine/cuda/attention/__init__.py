"""Attention over paged keys and values on a GPU, by the kernels that were tried fastest."""
