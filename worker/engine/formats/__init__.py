"""How the weights of a checkpoint are stored: found by its own words, checked, and made dense."""
