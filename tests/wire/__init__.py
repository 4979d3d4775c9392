"""What is stored stays readable: messages as released versions have written them."""
