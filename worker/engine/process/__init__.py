"""How a process of the engine reports its start, and how it ends."""
