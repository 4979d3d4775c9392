"""The `LinearFormat`s: one way to store a quantised weight each."""
