"""What holds for a service as a whole: its feature level, and its move to other streams."""
