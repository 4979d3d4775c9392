"""Builds an engine from its configuration, and checks beforehand whether the model fits."""
