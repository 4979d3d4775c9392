"""The rules by which a worker takes a request, also when others have died under it."""
