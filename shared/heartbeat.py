"""Heartbeats: a key in a KV bucket that expires when its writer stops writing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from shared.codec import encode
from shared.errors import BrokerError
from shared.event_wait import wait_event
from shared.kv_bucket import KvBucket
from shared.log import get_logger
from shared.streams import HEARTBEAT_INTERVAL_S

_DELETE_S = 0.5

log = get_logger(__name__)


class Heartbeat:
    """Writes `card()` under `key` every second until cancelled, then removes it."""

    def __init__(self, bucket: KvBucket, key: str, card: Callable[[], msgspec.Struct]) -> None:
        self._bucket = bucket
        self._key = key
        self._card = card
        self._wake = asyncio.Event()

    def beat_soon(self) -> None:
        """A change of state should not wait for the next second."""
        self._wake.set()

    async def beat(self) -> None:
        """Write now."""
        with contextlib.suppress(BrokerError):
            await self._bucket.put(self._key, encode(self._card()))

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                await self.beat()
                await wait_event(self._wake, HEARTBEAT_INTERVAL_S)
        finally:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(_DELETE_S):  # else it expires
                    await self._bucket.delete(self._key)
