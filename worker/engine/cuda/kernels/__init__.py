"""The kernels in Triton: the only package that imports it."""
