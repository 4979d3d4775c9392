"""This package tells what the machine has: cores, memory, a GPU driver, a CUDA compiler, and how
jetflock was installed on it."""
