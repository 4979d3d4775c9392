"""The one way from received text to events, for every wire format and both transports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from frontend.streams.generation import Generation, error_of
from frontend.surfaces.chat.chat_events import ChatEvents
from frontend.surfaces.classes.class_events import ClassEvents, PoolingEvents
from frontend.surfaces.completions.completion_events import CompletionEvents
from frontend.surfaces.embeddings.embedding_events import EmbeddingEvents, OllamaEmbedEvents
from frontend.surfaces.generate.generate_events import GenerateEvents
from frontend.surfaces.generate.growing_events import GrowingEvents
from frontend.surfaces.infill.infill_events import InfillEvents
from frontend.surfaces.scores.score_events import RerankEvents, ScoreEvents
from frontend.surfaces.transcripts.transcript_events import TranscriptEvents
from frontend.text.event_writer import EventWriter, error_body
from frontend.text.logprob_view import MAX_EVENT_LOGPROBS
from frontend.text.text_stream import TextStream
from shared.errors import RequestError
from shared.protocol.reply import Surface
from shared.telemetry.histograms import EventHistogram


class Event(NamedTuple):
    """One event: where it leaves the client, its JSON, and its type where it has one."""

    event_id: bytes
    data: bytes
    name: bytes = b""
    repeats_id: bool = False  # that of the event before it, which clients of SSE keep


class EventSink(Protocol):
    """Where events are sent without waiting, while it is open."""

    @property
    def is_open(self) -> bool: ...

    def send(self, events: list[Event]) -> None: ...


class Feed(Protocol):
    """What a transport sends of one generation."""

    is_ended: bool  # set with the last events
    error: RequestError | None  # set when they end in an error

    @property
    def event_id(self) -> bytes:
        """The id of the last event; before the first one, of where the client is."""
        ...

    @property
    def epilogue(self) -> bytes:
        """What follows the last event of a stream without error, as it is on the wire."""
        ...

    def opening(self, *, resumed: bool = False) -> list[Event]: ...

    async def next(self, sink: EventSink | None = None) -> list[Event]: ...

    async def whole(self) -> bytes: ...


class EventFeed:
    """Events of one generation, in order.

    `is_ended` is set with the last ones; `error` when they end in an error. A piece of text has
    been taken from its stream exactly when its event has been returned.
    """

    def __init__(self, generation: Generation, inter_token_latency: EventHistogram) -> None:
        self._generation = generation
        self._inter_token_latency = inter_token_latency
        self._writer = writer_for(generation)
        self._now = asyncio.get_running_loop().time
        self._id_head = generation.group_id.encode() + b"."
        self._marks = [stream.mark_bytes() for stream in generation.streams]
        self._num_running = len(generation.streams)
        self.is_ended = False
        self.error: RequestError | None = None

    @property
    def epilogue(self) -> bytes:
        if self._generation.surface is Surface.INFILL:
            return b""  # its last event says that it is the last
        return b"id: " + self._event_id() + b"\ndata: [DONE]\n\n"

    @property
    def event_id(self) -> bytes:
        return self._event_id()

    def opening(self, *, resumed: bool = False) -> list[Event]:
        """What precedes all text; nothing for a client that has seen it."""
        if resumed:
            return []
        event_id = self._event_id()
        return [Event(event_id, data) for data in self._writer.opening()]

    async def next(self, sink: EventSink | None = None) -> list[Event]:
        """Wait for events; an empty list asks for a sign of life. Raises Interrupted.

        Those of text alone go to the sink as they come.
        """
        generation = self._generation
        send_text = None if sink is None else partial(self._send_text, sink)
        while True:
            await generation.wait(send_text)
            news = generation.take_news()
            if not news:
                return []
            events: list[Event] = []
            for stream in news:
                self._add_events(stream, events)
                if self.error is not None:
                    return events
            if self._num_running == 0:
                event_id = self._event_id()
                events += [
                    Event(event_id, data, repeats_id=True) for data in self._writer.closing()
                ]
                self.is_ended = True
            if events:
                return events

    def _send_text(self, sink: EventSink, news: Sequence[TextStream]) -> bool:
        """Whether all news are text, which is sent."""
        for stream in news:
            if stream.finish is not None:
                return False
        if not sink.is_open:
            return False
        events: list[Event] = []
        for stream in news:
            self._add_events(stream, events)
        if events:
            sink.send(events)
        return True

    async def whole(self) -> bytes:
        """The answer in one piece. Raises RequestError or Interrupted."""
        await self._generation.wait_finished()
        self.error = self._generation.failure()
        if self.error is not None:
            raise self.error
        texts = [stream.take() for stream in self._generation.streams]
        self._note_time()
        self.is_ended = True
        return self._writer.whole(texts)

    def _add_events(self, stream: TextStream, events: list[Event]) -> None:
        finish = stream.finish
        while self._generation.token_texts is not None and stream.num_pending > MAX_EVENT_LOGPROBS:
            self._add_text(stream, "", events)  # more than one event may carry
        if text := stream.take():
            self._note_time()
            self._add_text(stream, text, events)
        if finish is None:
            return
        error = error_of(stream)
        if error is not None:
            self._marks[stream.reply.choice_idx] = stream.mark_bytes()
            self.error = error
            self.is_ended = True
            events.append(Event(self._event_id(), error_body(error)))
            return
        self._num_running -= 1
        data = self._writer.finish(stream)
        self._marks[stream.reply.choice_idx] = stream.mark_bytes()
        events.append(Event(self._event_id(), data))

    def _add_text(self, stream: TextStream, text: str, events: list[Event]) -> None:
        if data := self._writer.text(stream, text):
            self._marks[stream.reply.choice_idx] = stream.mark_bytes()
            events.append(Event(self._event_id(), data))

    def _event_id(self) -> bytes:
        marks = self._marks
        return self._id_head + (marks[0] if len(marks) == 1 else b"_".join(marks))

    def _note_time(self) -> None:
        self._generation.timings.note_text(self._now(), self._inter_token_latency)


def writer_for(generation: Generation) -> EventWriter:
    """The wire format of the API that the request came through."""
    match generation.surface:
        case Surface.CHAT | Surface.CHAT_BATCH:
            return ChatEvents(generation.streams, generation.token_texts)
        case Surface.COMPLETIONS:
            return CompletionEvents(generation.streams, generation.token_texts)
        case Surface.INFILL:
            return InfillEvents(generation.streams)
        case Surface.TRANSCRIPTION | Surface.TRANSLATION:
            assert generation.token_texts is not None, "its text is made of tokens"
            return TranscriptEvents(generation.streams[0], generation.token_texts)
        case Surface.GENERATE:
            return GenerateEvents(generation.streams, generation.token_texts)
        case Surface.GENERATE_SO_FAR:
            return GrowingEvents(generation.streams, generation.token_texts)
        case Surface.EMBEDDINGS:
            return EmbeddingEvents(generation.streams)
        case Surface.SCORE:
            return ScoreEvents(generation.streams)
        case Surface.RERANK:
            return RerankEvents(generation.streams)
        case Surface.CLASSIFY:
            return ClassEvents(generation.streams, generation.labels)
        case Surface.POOLING:
            return PoolingEvents(generation.streams)
        case Surface.OLLAMA_EMBED:
            return OllamaEmbedEvents(generation)
        case Surface.RESPONSES | Surface.MESSAGES | Surface.OLLAMA_CHAT | Surface.OLLAMA_GENERATE:
            raise AssertionError("it has a feed of its own")
        case Surface.FORK:
            raise AssertionError("it has the surface of its source")
