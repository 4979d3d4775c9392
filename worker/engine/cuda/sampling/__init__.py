"""Choosing tokens where the logits are."""
