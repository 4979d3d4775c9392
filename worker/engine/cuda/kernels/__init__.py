"""The kernels in Triton: the only room that imports it."""
