"""This package holds the limits of a frontend on batches, images, streams and stored data."""
