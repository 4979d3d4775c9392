"""What a frontend asks detokenizers for, and when."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from frontend.metrics import FrontendMetrics
from frontend.resuming.replayer import MAX_BACKOFF_S, Replayer
from shared.protocol.text import ReplayReply, ReplayStatus
from tests.frontend.test_text_stream import make_stream


class Detok:
    """Answers that the request runs on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def replay(self, rid: str, offset: int) -> ReplayReply:
        self.asked.set()
        return ReplayReply(ReplayStatus.RUNNING)


async def test_streams_are_asked_for_at_once_when_nats_is_back() -> None:
    """While it was away every try failed, and the next one would be seconds off."""
    now = asyncio.get_running_loop().time()
    stream, _ = make_stream()
    stream.last_heard_at = now - 60
    stream.asked_at, stream.backoff_s = now, MAX_BACKOFF_S
    generation = SimpleNamespace(is_watched=True, streams=[stream])
    router = SimpleNamespace(on_gap=asyncio.Event(), generations=[generation])
    detok = Detok()
    replayer = Replayer(cast(Any, router), cast(Any, detok), FrontendMetrics(CollectorRegistry()))
    running = asyncio.create_task(replayer.run())
    await asyncio.sleep(0.3)
    assert not detok.asked.is_set(), "its turn comes later"
    replayer.on_reconnect()
    async with asyncio.timeout(MAX_BACKOFF_S / 2):
        await detok.asked.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
