"""What a worker counts and measures."""
