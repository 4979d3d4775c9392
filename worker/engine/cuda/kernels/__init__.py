"""Triton kernels: they need no compiler, and run on a CPU by Triton's interpreter."""
