"""The `LinearFormat`s: one way to store a quantised weight each, as its tensors' heads show it."""
