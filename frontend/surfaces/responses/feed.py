"""Sends a response: its events from a number on, or the object."""

from __future__ import annotations

import asyncio

from frontend.jobs.stored_response import ResponseView
from frontend.streams.generation import Generation, error_of
from frontend.surfaces.event_feed import Event, EventSink
from frontend.surfaces.responses.events import NamedEvent, ResponseEvents
from frontend.text.event_writer import encode_json, error_body
from shared.errors import InternalError, RequestError
from shared.telemetry.histograms import EventHistogram


class ResponseFeed:
    """To a transport what `EventFeed` is. `starting_after` is the last number the client has."""

    event_id = b""  # events have numbers in its place
    epilogue = b""  # the last event says that it is the last

    def __init__(
        self,
        generation: Generation,
        view: ResponseView,
        inter_token_latency: EventHistogram,
        starting_after: int = -1,
    ) -> None:
        self._generation = generation
        self._stream = generation.streams[0]
        self._is_awaited = not view.record.params.background
        self._events = ResponseEvents(view, self._stream)
        self._inter_token_latency = inter_token_latency
        self._starting_after = starting_after
        self.is_ended = False
        self.error: RequestError | None = None

    def opening(self, *, resumed: bool = False) -> list[Event]:
        """What precedes all text, and has not been seen."""
        return self._unseen(self._events.opening())

    async def next(self, sink: EventSink | None = None) -> list[Event]:
        """Wait for events; an empty list asks for a sign of life. Raises Interrupted."""
        while not self.is_ended:
            await self._generation.wait()
            if not self._generation.take_news():
                return []
            if self._stream.take():
                self._generation.timings.note_text(
                    asyncio.get_running_loop().time(), self._inter_token_latency
                )
            try:
                events = self._unseen(self._events.more())
            except InternalError as exc:
                self.error, self.is_ended = exc, True
                return [Event(b"", error_body(exc))]
            if self._stream.finish is not None:
                self.error, self.is_ended = error_of(self._stream), True
            if events:
                return events
        return []

    async def whole(self) -> bytes:
        """The response object: finished, unless it runs in the background.

        Raises RequestError or Interrupted.
        """
        if self._is_awaited:
            await self._generation.wait_finished()
            self.error = self._generation.failure()
            if self.error is not None:
                raise self.error
        self._events.more()
        self.is_ended = True
        return encode_json(self._events.response())

    def _unseen(self, events: list[NamedEvent]) -> list[Event]:
        return [
            Event(b"", event.data, event.name)
            for event in events
            if event.number > self._starting_after
        ]
