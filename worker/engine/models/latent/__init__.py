"""Attention over a latent of each token, of which its keys and values are made (MLA)."""
