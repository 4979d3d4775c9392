"""This package runs requests again, one, many or as they end, and compares their tokens."""
