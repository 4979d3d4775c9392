"""Uploaded files, in the object store."""
