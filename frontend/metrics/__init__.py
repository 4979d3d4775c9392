"""Holds what a frontend counts, a class for each part of it that counts."""
