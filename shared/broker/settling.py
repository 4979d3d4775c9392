"""Waiting while NATS servers settle: they choose leaders, or learn of a peer that joins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.errors import BrokerUnavailable, JetStreamAbsent
from shared.telemetry.log import get_logger

T = TypeVar("T")

RETRY_S = 0.3

log = get_logger(__name__)


async def once_settled(work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """What `work` gives, tried again for so long; it has to be safe to repeat.

    Raises BrokerError: at once what waiting does not change, JetStreamAbsent among it.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return await work()
        except JetStreamAbsent:
            raise
        except BrokerUnavailable as exc:
            if time.monotonic() > deadline:
                raise
            log.info("servers_settle", error=str(exc))
            await asyncio.sleep(RETRY_S)
