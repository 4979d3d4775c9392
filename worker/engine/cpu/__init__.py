"""Runs a planned step of a decoder on a CPU, in plain torch."""
