"""This package holds the bodies of /tokenize and /detokenize."""
