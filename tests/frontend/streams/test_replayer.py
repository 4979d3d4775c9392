"""What a frontend asks detokenizers for, and when."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from frontend.metrics import FrontendMetrics
from frontend.streams.replayer import MAX_BACKOFF_S, Replayer, is_due
from shared.protocol.text import ReplayReply, ReplayStatus
from tests.frontend.text.test_text_stream import make_stream
from tests.time_to_err import time_to_err


class Detok:
    """Answers that the request runs on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def replay(self, rid: str, offset: int, *, follows: bool) -> ReplayReply:
        assert follows
        self.asked.set()
        return ReplayReply(ReplayStatus.RUNNING)


async def test_streams_are_asked_for_at_once_when_nats_is_back() -> None:
    """While it was away every try failed, and the next one would be seconds off."""
    now = asyncio.get_running_loop().time()
    stream, _ = make_stream()
    stream.last_heard_at = now - 60
    stream.asked_at, stream.backoff_s = now, MAX_BACKOFF_S
    generation = SimpleNamespace(is_watched=True, is_resumed=False, streams=[stream])
    in_use = asyncio.Event()
    in_use.set()
    router = SimpleNamespace(on_gap=asyncio.Event(), generations=[generation], in_use=in_use)
    detok = Detok()
    replayer = Replayer(
        cast(Any, router),
        cast(Any, detok),
        cast(Any, None),
        FrontendMetrics(CollectorRegistry()).streams,
    )
    running = asyncio.create_task(replayer.run())
    await time_to_err(0.3)
    assert not detok.asked.is_set(), "its turn comes later"
    await replayer.on_reconnect()
    async with asyncio.timeout(MAX_BACKOFF_S / 2):
        await detok.asked.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def test_while_nobody_answers_it_asks_soon_then_less_and_less() -> None:
    """A partition that changes hands has no owner for a moment: streams shall not wait longer."""
    stream, _ = make_stream()
    stream.asked_at, stream.backoff_s = 100.0, MAX_BACKOFF_S
    pauses = []
    for stream.num_failed_asks in (1, 2, 3, 50):
        steps = (step / 100 for step in range(2000))
        pauses.append(next(pause for pause in steps if is_due(stream, 100.0 + pause)))
    assert pauses == [0.25, 0.5, 1.0, MAX_BACKOFF_S]
    stream.num_failed_asks = 0
    assert not is_due(stream, 100.0 + MAX_BACKOFF_S - 0.1), "it is queued: that takes time"
