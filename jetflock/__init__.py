"""The face of jetflock: the `jetflock` command and the Python client."""

from jetflock.client import Client

__all__ = ["Client"]
