"""What a decoder layer is made of on a GPU, but for attention."""
