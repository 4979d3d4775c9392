"""How several GPUs share a model: the group, the weights of each, and what rank 0 orders."""
