"""Events go out as they come while the way to the client is open, and in order where it is not."""

from __future__ import annotations

import asyncio

import pytest

from frontend.jobs.job import Caller
from frontend.streams.generation import Generation, Interrupt, Interrupted
from frontend.surfaces.event_feed import Event, EventFeed
from shared.errors import InternalError
from shared.protocol.text import TextChunk
from shared.telemetry.histograms import TOKEN_S, EventHistogram
from tests.frontend.text.test_text_stream import STOP, chunk, make_reply

RID = "0" * 32


class Sink:
    """Keeps the JSON of what it is sent."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[bytes] = []
        self.fails = False

    def send(self, events: list[Event]) -> None:
        if self.fails:
            raise InternalError("oh")
        self.sent += [event.data for event in events]


class Reading:
    """A client's stream of a chat, and the task that reads it."""

    def __init__(self) -> None:
        self.generation = Generation.of(
            [(RID, make_reply())],
            Caller(),
            pool="p",
            arrived_at=0.0,
            remaining_s=60.0,
            queue_timeout_s=0.0,
            token_texts=None,
        )
        self.feed = EventFeed(self.generation, EventHistogram("itl", "", TOKEN_S))
        self.sink = Sink()

    async def begin(self) -> asyncio.Task[list[Event]]:
        """The task waits when this returns."""
        task = asyncio.create_task(self.feed.next(self.sink))
        await asyncio.sleep(0)
        return task

    def receive(self, piece: TextChunk) -> None:
        self.generation.streams[0].receive(piece, 0.0)


def texts(events: list[bytes]) -> list[bytes]:
    return [
        event.split(b'"content":"')[1].split(b'"')[0] for event in events if b'"content"' in event
    ]


async def test_text_is_sent_by_who_brings_it_and_the_end_is_returned() -> None:
    reading = Reading()
    waiting = await reading.begin()
    reading.receive(chunk(0, "ab"))
    reading.receive(chunk(2, "c"))
    assert texts(reading.sink.sent) == [b"ab", b"c"]
    assert reading.feed.event_id.startswith(RID.encode() + b".3.3.")
    reading.receive(chunk(3, "d", STOP))
    events = await waiting
    assert texts([event.data for event in events]) == [b"d"]
    assert reading.feed.is_ended
    assert len(reading.sink.sent) == 2


async def test_what_comes_while_the_way_is_closed_is_returned_before_what_comes_later() -> None:
    reading = Reading()
    waiting = await reading.begin()
    reading.sink.is_open = False
    reading.receive(chunk(0, "ab"))
    reading.sink.is_open = True
    reading.receive(chunk(2, "c"))  # its reader is awake, and takes both
    assert texts([event.data for event in await waiting]) == [b"abc"]
    assert not reading.sink.sent


async def test_nothing_is_sent_to_a_stream_that_is_cut() -> None:
    reading = Reading()
    waiting = await reading.begin()
    reading.generation.cut(Interrupt.SHUTDOWN)
    reading.receive(chunk(0, "ab"))
    with pytest.raises(Interrupted):
        await waiting
    assert not reading.sink.sent


async def test_a_sign_of_life_is_asked_for_of_a_reader_that_sends_at_once() -> None:
    reading = Reading()
    waiting = await reading.begin()
    reading.receive(chunk(0, "ab"))
    reading.generation.keepalive()
    assert await waiting == []


async def test_what_fails_at_a_piece_fails_its_reader_alone() -> None:
    reading = Reading()
    waiting = await reading.begin()
    reading.sink.fails = True
    reading.receive(chunk(0, "ab"))
    with pytest.raises(InternalError):
        await waiting


async def test_who_has_left_is_sent_nothing() -> None:
    reading = Reading()
    waiting = await reading.begin()
    waiting.cancel()
    await asyncio.wait([waiting])
    reading.receive(chunk(0, "ab"))
    assert not reading.sink.sent
