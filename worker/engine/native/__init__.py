"""The fused decoder in C++, built when a worker first needs it."""
