"""The weights and LoRA adapters that this worker serves."""
