"""The messages that cross a process border, and how they are encoded."""
