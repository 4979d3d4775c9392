"""Models: their configurations, their checkpoints, and the order of their layers."""
