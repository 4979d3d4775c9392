"""What a frontend asks detokenizers for, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from frontend.metrics import FrontendMetrics
from frontend.streams.alarms import TICK_S, Alarms
from frontend.streams.generation import Generation, Timings
from frontend.streams.replayer import MAX_BACKOFF_S, Replayer, due_at, is_likely_quiet
from frontend.streams.reply_router import SILENCE_S, Reading, ReplyRouter
from frontend.tenants.ledger import TenantLedger
from shared.broker.text_readers import TextReaders
from shared.errors import BrokerUnavailable
from shared.protocol.codec import encode_text_frame
from shared.protocol.text import Held, ReplayReply, ReplayStatus, TextChunk, TextFrame
from tests.eventually import eventually
from tests.frontend.text.test_text_stream import make_stream
from tests.time_to_err import time_to_err


def make_router() -> ReplyRouter:
    nothing: Any = None
    metrics = FrontendMetrics(CollectorRegistry()).streams
    return ReplyRouter(nothing, "jf.out.f", TextReaders(), TenantLedger(), nothing, metrics)


class Detok:
    """Answers that the request runs on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def replay(
        self, rid: str, offset: int, *, follows: bool, others: Sequence[Held]
    ) -> ReplayReply:
        assert follows
        assert not others
        self.asked.set()
        return ReplayReply(ReplayStatus.RUNNING)

    def partition(self, rid: str) -> int:
        return int(rid[0])


class Company(Detok):
    """Says nothing, or which of several have changed."""

    def __init__(self, changed: list[str] | None, *, is_dead: bool) -> None:
        super().__init__()
        self._changed = changed
        self._is_dead = is_dead
        self.heard: list[tuple[str, list[str]]] = []

    async def replay(
        self, rid: str, offset: int, *, follows: bool, others: Sequence[Held]
    ) -> ReplayReply:
        assert (offset, [held.text_len for held in others]) == (1, [1] * len(others))
        self.heard.append((rid[:2], [held.rid[:2] for held in others]))
        if self._is_dead:
            raise BrokerUnavailable("nobody")
        return ReplayReply(ReplayStatus.RUNNING, changed=self._changed if others else None)


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


@pytest.mark.parametrize(
    ("changed", "is_dead", "alone"),
    [
        ([], False, []),
        (["01" + "0" * 30], False, ["01"]),
        (None, False, ["01", "02"]),  # a detokenizer of an earlier build
        (None, True, []),
    ],
)
async def test_silent_streams_of_a_partition_are_asked_for_in_one_message(
    changed: list[str] | None, is_dead: bool, alone: list[str]
) -> None:
    now = asyncio.get_running_loop().time()
    router, detok = make_router(), Company(changed, is_dead=is_dead)
    streams = []
    for name in ("00", "01", "02", "10"):
        stream, _ = make_stream()
        stream.rid = name + "0" * 30
        stream.receive(TextChunk(stream.rid, 1, 0, "a", [5]), now - 10)
        generation = Generation(name, "pool", Timings(now), float("inf"))
        generation.streams.append(stream)
        router.add(generation)
        router.ask(Reading(stream, generation))
        streams.append(stream)
    metrics = FrontendMetrics(CollectorRegistry()).streams
    running = asyncio.create_task(
        Replayer(router, cast(Any, detok), cast(Any, None), metrics).run()
    )
    await eventually(lambda: not any(s.is_asking or s.asked_at <= now for s in streams))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    together, other, *rest = detok.heard
    assert (together, other) == (("00", ["01", "02"]), ("10", []))
    assert [rid for rid, others in rest if not others] == alone
    assert [stream.num_failed_asks for stream in streams] == [int(is_dead)] * 4
    assert not any(is_likely_quiet(stream) for stream in streams if is_dead), "each alone next time"


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
