"""This package reads what a fork asks for: a stream that is known, a place in it, and how to go on
from there."""
