"""The metrics of a worker, a class for each of its parts."""
