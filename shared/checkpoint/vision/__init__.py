"""This package reads how a model sees from its checkpoint: a file a family, and their registry."""
