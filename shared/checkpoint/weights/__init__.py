"""Reads the heads of files of weights: which tensors there are, without their values."""
