"""The hosts of a model that several share: how they meet, and what the further ones run."""
