"""Brings held requests into the engine, and their tokens into the log."""
