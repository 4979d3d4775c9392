"""Empties the engine's prefix cache when somebody asks for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.log import get_logger

log = get_logger(__name__)


class FlushControl:
    """Every message on the pool's flush subject, whatever it says, flushes this engine."""

    def __init__(self, nc: Client, subject: str, flush_cache: Callable[[], None]) -> None:
        self._nc = nc
        self._subject = subject
        self._flush_cache = flush_cache

    async def run(self) -> None:
        """Until cancelled."""
        subscription = await self._nc.subscribe(self._subject, cb=self._on_flush)
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _on_flush(self, _: Msg) -> None:
        log.info("cache_flushed")
        self._flush_cache()
