"""Runs planned steps on a GPU: captured as CUDA graphs, cut where memory is short."""
