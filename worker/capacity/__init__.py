"""How many more requests this worker can take, and how it keeps the ones that it has."""
