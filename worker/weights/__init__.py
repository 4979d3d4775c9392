"""Loads, exchanges and reports the weights and LoRA adapters that this worker serves."""
