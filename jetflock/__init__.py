"""The face of jetflock: the `jetflock` command and the Python client."""

from jetflock.client import Client
from jetflock.sync_client import SyncClient

__all__ = ["Client", "SyncClient"]
