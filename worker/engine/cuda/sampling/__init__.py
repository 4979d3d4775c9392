"""Chooses tokens on the GPU with the same noise and the same kept sets as the CPU."""
