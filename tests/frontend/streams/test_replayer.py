"""What a frontend asks detokenizers for, and when."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from frontend.metrics import FrontendMetrics
from frontend.streams.alarms import TICK_S, Alarms
from frontend.streams.generation import Generation, Timings
from frontend.streams.replayer import MAX_BACKOFF_S, Replayer, due_at
from frontend.streams.reply_router import SILENCE_S, Reading, ReplyRouter
from frontend.tenants.ledger import TenantLedger
from shared.protocol.codec import encode_text_frame
from shared.protocol.text import ReplayReply, ReplayStatus, TextChunk, TextFrame
from tests.frontend.text.test_text_stream import make_stream
from tests.time_to_err import time_to_err


def make_router() -> ReplyRouter:
    nothing: Any = None
    metrics = FrontendMetrics(CollectorRegistry()).streams
    return ReplyRouter(nothing, "jf.out.f", TenantLedger(), nothing, metrics)


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
    generation = Generation("g", "pool", Timings(now), float("inf"), is_resumed=True)
    generation.streams.append(stream)
    router = make_router()
    router.add(generation)
    router.ask(Reading(stream, generation), due_at(stream))
    detok = Detok()
    replayer = Replayer(
        router,
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
        pauses.append(due_at(stream) - 100.0)
    stream.num_failed_asks = 0
    assert due_at(stream) == 100.0 + MAX_BACKOFF_S, "it is queued: that takes time"


async def test_who_is_heard_again_after_a_long_silence_is_watched_as_closely_as_others() -> None:
    now = asyncio.get_running_loop().time()
    stream, _ = make_stream()
    generation = Generation("g", "pool", Timings(now), float("inf"))
    generation.streams.append(stream)
    router = make_router()
    router.add(generation)
    reading = Reading(stream, generation)
    assert router.take_to_ask(now + SILENCE_S + TICK_S) == [reading]
    stream.backoff_s = MAX_BACKOFF_S
    router.ask(reading, now + MAX_BACKOFF_S)
    frame = encode_text_frame(TextFrame("d", [TextChunk(stream.rid, 1, 0, "a", [5])]))
    await router._on_message(cast(Any, SimpleNamespace(data=frame, subject="jf.out.f")))
    assert stream.have == 1
    assert router.take_to_ask(now + SILENCE_S + 2 * TICK_S) == [reading]
    assert due_at(stream) < now + SILENCE_S + TICK_S
    router.remove(generation)
    router.ask(reading, now)
    assert router.take_to_ask(now + 100) == [], "it is read no more"


def test_an_alarm_goes_off_once_at_the_time_that_was_set_last() -> None:
    alarms: Alarms[str] = Alarms()
    for thing, at in (("a", 5.0), ("b", 3.0), ("c", 1.0), ("d", 0.0), ("a", 2.0), ("a", 4.0)):
        alarms.set(thing, at)
    alarms.drop("c")
    assert alarms.take_due(3.5) == ["d", "b"]
    assert alarms.take_due(3.5) == []
    alarms.set("b", float("inf"))
    assert alarms.take_due(4.0 + TICK_S) == ["a"]
    assert alarms.take_due(100.0) == []
