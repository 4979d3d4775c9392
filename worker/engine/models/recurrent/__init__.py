"""The layers of a decoder that keep a state in the place of keys and values."""
