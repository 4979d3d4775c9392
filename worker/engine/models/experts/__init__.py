"""Mixtures of experts in the fused decoder: who is chosen for a token, and what they add."""
