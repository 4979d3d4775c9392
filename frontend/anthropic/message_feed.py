"""Sends a message: its events from the beginning, or the object."""

from __future__ import annotations

import asyncio

from frontend.anthropic.errors import message_error_body
from frontend.anthropic.message_events import MessageEvents
from frontend.event_feed import Event
from frontend.generation import Generation, error_of
from shared.errors import RequestError
from shared.event_histogram import EventHistogram


class MessageFeed:
    """To a transport what `EventFeed` is; events have no ids."""

    event_id = b""
    epilogue = b""  # message_stop says that it is the last

    def __init__(self, generation: Generation, inter_token_latency: EventHistogram) -> None:
        self._generation = generation
        self._stream = generation.streams[0]
        self._events = MessageEvents(self._stream)
        self._inter_token_latency = inter_token_latency
        self.is_ended = False
        self.error: RequestError | None = None

    def opening(self, *, resumed: bool = False) -> list[Event]:
        return self._events.opening()

    async def next(self) -> list[Event]:
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
        """The message object. Raises RequestError or Interrupted."""
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
            return [Event(b"", message_error_body(self.error), b"error")]
        return self._events.finish()

    def _note_time(self) -> None:
        now = asyncio.get_running_loop().time()
        self._generation.timings.note_text(now, self._inter_token_latency)
