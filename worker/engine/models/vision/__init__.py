"""This package holds the towers of models whose text is a decoder of its own: what transformers
makes of an image, a file a family."""
