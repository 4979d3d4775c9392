"""The GPU itself: its order of work, its memory, and what is told of it."""
