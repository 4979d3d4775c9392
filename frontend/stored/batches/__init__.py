"""This package keeps batches, and drives each of them from its input file to its output files."""
