"""Reads the files of a checkpoint on disk, and describes the model in them."""
