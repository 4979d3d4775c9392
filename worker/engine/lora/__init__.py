"""LoRA adapters: what is put on top of the weights, for each request of its own."""
