"""A step on a GPU: as it is planned, staged, captured and run."""
