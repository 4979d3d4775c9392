"""How full the workers are, and what waits for them."""
