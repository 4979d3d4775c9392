"""Processes that are kept running: any one of them, and the workers of this host."""
