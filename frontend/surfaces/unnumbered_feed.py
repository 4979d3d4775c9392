"""Sends the answer of one request in an API whose events have no ids."""

from __future__ import annotations

import asyncio
from typing import Protocol

from frontend.streams.generation import Generation, error_of
from frontend.surfaces.event_feed import Event, EventSink
from shared.errors import RequestError
from shared.telemetry.histograms import EventHistogram


class UnnumberedEvents(Protocol):
    """The events of one answer, as one API tells them."""

    def opening(self) -> list[Event]:
        """What comes before any text."""
        ...

    def text(self, text: str) -> list[Event]:
        """New text; no events while it says nothing yet."""
        ...

    def finish(self) -> list[Event]:
        """The stream has ended by itself."""
        ...

    def error(self, error: RequestError) -> Event:
        """The stream ends with it."""
        ...

    def whole(self, text: str) -> bytes:
        """The answer that is not streamed. The stream has ended by itself."""
        ...


class UnnumberedFeed:
    """To a transport what `EventFeed` is. Who comes back reads from the beginning."""

    event_id = b""
    epilogue = b""  # the last event says that it is the last

    def __init__(
        self,
        generation: Generation,
        events: UnnumberedEvents,
        inter_token_latency: EventHistogram,
    ) -> None:
        self._generation = generation
        self._stream = generation.streams[0]
        self._events = events
        self._inter_token_latency = inter_token_latency
        self.is_ended = False
        self.error: RequestError | None = None

    def opening(self, *, resumed: bool = False) -> list[Event]:
        return self._events.opening()

    async def next(self, sink: EventSink | None = None) -> list[Event]:
        """Wait for events; an empty list asks for a sign of life. Raises Interrupted."""
        while True:
            await self._generation.wait()
            if not self._generation.take_news():
                return []
            events = []
            if text := self._stream.take():
                self._note_time()
                events = self._events.text(text)
            if self._stream.finish is not None:
                events += self._end()
            if events:
                return events

    async def whole(self) -> bytes:
        """The answer in one piece. Raises RequestError or Interrupted."""
        await self._generation.wait_finished()
        self.error = self._generation.failure()
        if self.error is not None:
            raise self.error
        text = self._stream.take()
        self._note_time()
        self.is_ended = True
        return self._events.whole(text)

    def _end(self) -> list[Event]:
        self.is_ended = True
        self.error = error_of(self._stream)
        if self.error is not None:
            return [self._events.error(self.error)]
        return self._events.finish()

    def _note_time(self) -> None:
        now = asyncio.get_running_loop().time()
        self._generation.timings.note_text(now, self._inter_token_latency)
