"""This package knows the models of the hub on this disk: their files, and what the engine says of
them."""
