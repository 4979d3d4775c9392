"""Heartbeats: a key in a KV bucket that expires when its writer stops writing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec

from shared.broker.kv_bucket import KvBucket
from shared.errors import BrokerError
from shared.event_wait import beat_s, wait_event
from shared.protocol.codec import encode
from shared.storage.streams import HEARTBEAT_INTERVAL_S, HEARTBEAT_TTL_S
from shared.telemetry.log import get_logger

_DELETE_S = 0.5
# After the bucket was away everybody's heartbeat may have expired: how long those who live need to
# write the next one, a write that hangs and the pause behind it included.
SETTLE_S = 3.5
_RETRY_S = 0.3

log = get_logger(__name__)


class Writability:
    """Whether a bucket has taken writes all the while: only then the absence of a heartbeat in it
    means death. Servers that choose a new leader take longer than a heartbeat lives.
    """

    def __init__(self) -> None:
        self._failed_at = float("-inf")

    def note(self, *, is_written: bool) -> None:
        if not is_written:
            self._failed_at = time.monotonic()

    @property
    def is_steady(self) -> bool:
        return time.monotonic() - self._failed_at > SETTLE_S


class Heartbeat:
    """Writes `card()` under `key` every second until cancelled, then removes it."""

    def __init__(self, bucket: KvBucket, key: str, card: Callable[[], msgspec.Struct]) -> None:
        self._bucket = bucket
        self._key = key
        self._card = card
        self._wake = asyncio.Event()
        self._is_written = True
        self._written_at = float("-inf")
        self.writability = Writability()

    @property
    def is_shown(self) -> bool:
        """Whether others can see it: written, and not expired."""
        return time.monotonic() - self._written_at < HEARTBEAT_TTL_S

    def beat_soon(self) -> None:
        """A change of state should not wait for the next second."""
        self._wake.set()

    async def beat(self) -> None:
        """Write now."""
        try:
            await self._bucket.put(self._key, encode(self._card()))
        except BrokerError:
            self._is_written = False
        else:
            self._is_written = True
            self._written_at = time.monotonic()
        self.writability.note(is_written=self._is_written)

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                await self.beat()
                pause_s = beat_s(HEARTBEAT_INTERVAL_S) if self._is_written else _RETRY_S
                await wait_event(self._wake, pause_s)
        finally:
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(_DELETE_S):  # else it expires
                    await self._bucket.delete(self._key)
