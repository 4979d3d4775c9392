"""LoRA adapters: their weights, and what they add to the projections of a model."""
