"""Shows who is alive and what happens in a pool, and watches what must not go back."""
