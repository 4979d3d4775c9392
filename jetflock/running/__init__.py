"""This package finds the running service that a command means, and asks it."""
