"""The layers of a decoder between its attention, by Triton kernels and cuBLAS."""
