"""The fused decoder in C++ for CPUs, built when a worker first needs it."""
