"""This package says what a frontend allows batches, images and streams."""
