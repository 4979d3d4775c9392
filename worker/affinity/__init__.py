"""Knows which worker of a pool has computed which prefix, or has served which session."""
