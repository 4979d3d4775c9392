"""Which kernel is the fastest here: tried in a process of its own, and remembered on disk."""
