"""Models: their configuration, their checkpoints, their layers."""
