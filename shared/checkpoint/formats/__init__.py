"""How the weights of a checkpoint are stored: found by its own words, and checked by its heads."""
