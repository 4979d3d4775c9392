"""Sends an answer over HTTP: as JSON, or as server-sent events written straight to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frontend.http.connected_client import PIECE_WRITER, ConnectedClient
from frontend.http.error_response import (
    EVENT_STREAM_HEADERS,
    JSON_LINES_HEADERS,
    ErrorBody,
    error_response,
)
from frontend.http.http_protocol import PieceWriter
from frontend.jobs.client_request_id import HEADER as CLIENT_ID_HEADER
from frontend.streams.generation import Interrupt, Interrupted, error_of_interrupt
from frontend.surfaces.answer import Answer
from frontend.surfaces.anthropic.message_answer import message_error_body
from frontend.surfaces.event_feed import Event
from frontend.surfaces.ollama.ollama_answer import ollama_error_body
from frontend.text.event_writer import error_body
from shared.errors import RequestError
from shared.protocol.reply import Surface

CLIENT_GONE_STATUS = 499


def sse(events: list[Event]) -> bytes:
    """Server-sent events on the wire."""
    if len(events) == 1:
        return _sse(events[0])
    return b"".join([_sse(event) for event in events])


def _sse(event: Event) -> bytes:
    event_id, data, name, repeats_id = event
    if name:
        return b"event: " + name + b"\ndata: " + data + b"\n\n"
    # LiteLLM takes a line between finish and usage for the stream's end, and misses the usage.
    if event_id and not repeats_id:
        return b"id: " + event_id + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def json_lines(events: list[Event]) -> bytes:
    """One JSON text a line: events have neither ids nor types."""
    return b"".join([event.data + b"\n" for event in events])


class Dialect(NamedTuple):
    """What is not in the events of an API, and yet differs."""

    error_body: ErrorBody
    error_event: bytes = b""  # its type, where events have one
    headers: tuple[tuple[bytes, bytes], ...] = EVENT_STREAM_HEADERS
    framed: Callable[[list[Event]], bytes] = sse
    greeting: bytes = b": ok\n\n"  # before there is any event
    # No blank line: SDKs take one behind an id for an event without data, and fail.
    ping: bytes = b": ping\n"
    id_header: str = "x-request-id"

    def id_headers(self, answer: Answer) -> dict[str, str]:
        group_id, client_id = answer.generation.group_id, answer.generation.client_id
        named = {CLIENT_ID_HEADER: client_id} if client_id else {}
        return {"x-request-id": group_id, self.id_header: group_id, **named}


_OPENAI = Dialect(error_body)
# Blanks before a JSON text are part of it: clients that read lines see no other line.
_OLLAMA = Dialect(
    ollama_error_body, headers=JSON_LINES_HEADERS, framed=json_lines, greeting=b" ", ping=b" "
)
_DIALECTS = {
    Surface.MESSAGES: Dialect(
        message_error_body,
        error_event=b"error",
        ping=b'event: ping\ndata: {"type": "ping"}\n\n',
        id_header="request-id",
    ),
    Surface.OLLAMA_CHAT: _OLLAMA,
    Surface.OLLAMA_GENERATE: _OLLAMA,
    Surface.OLLAMA_EMBED: _OLLAMA,
}


class _PieceSink:
    """Events on their short way to a connection."""

    __slots__ = ("_framed", "_writer")

    def __init__(self, writer: PieceWriter, framed: Callable[[list[Event]], bytes]) -> None:
        self._writer = writer
        self._framed = framed

    @property
    def is_open(self) -> bool:
        return self._writer.is_open

    def send(self, events: list[Event]) -> None:
        self._writer.write(self._framed(events))


class AnswerResponse:
    """An ASGI response. `status_code` is the outcome, also of a stream that began with 200."""

    def __init__(self, answer: Answer, ping_interval_s: float) -> None:
        self._answer = answer
        self._ping_interval_s = ping_interval_s
        self._dialect = _DIALECTS.get(answer.generation.surface, _OPENAI)
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client, generation = ConnectedClient.of(scope), self._answer.generation
        leave = partial(generation.cut, Interrupt.CLIENT_GONE)
        client.on_gone(leave)
        try:
            if self._answer.stream:
                # A task of its own: a token then wakes 3 coroutines, not the 9 of the route.
                await asyncio.create_task(self._send_stream(send, scope[PIECE_WRITER]))
            else:
                await self._send_whole(scope, receive, send)
        except asyncio.CancelledError:
            generation.cut(Interrupt.SHUTDOWN)
            self.status_code = 503
            raise
        finally:
            client.forget(leave)
            self._answer.close(self.status_code, "http")

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**self._dialect.id_headers(self._answer), **self._answer.headers}
        try:
            body = await self._answer.feed.whole()
        except RequestError as exc:
            self.status_code = exc.status_code
            response = error_response(exc, headers, self._dialect.error_body)
            await response(scope, receive, send)
        except Interrupted as exc:
            await self._send_interrupt(exc.interrupt, scope, receive, send, headers)
        else:
            transcript = self._answer.generation.reply.transcript
            is_json = transcript is None or transcript.format.is_json
            kind = "application/json" if is_json else "text/plain"
            await Response(body, headers=headers, media_type=kind)(scope, receive, send)

    async def _send_interrupt(
        self,
        interrupt: Interrupt,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[str, str],
    ) -> None:
        error = error_of_interrupt(interrupt, self._answer.generation.group_id)
        self.status_code = error.status_code
        if interrupt is Interrupt.SHUTDOWN:
            headers = headers | {"connection": "close"}
        if interrupt is not Interrupt.CLIENT_GONE:
            response = error_response(error, headers, self._dialect.error_body)
            await response(scope, receive, send)

    async def _send_stream(self, send: Send, writer: PieceWriter) -> None:
        answer, feed = self._answer, self._answer.feed
        sink = _PieceSink(writer, self._dialect.framed)
        headers = [
            *self._dialect.headers,
            *(
                (name.encode(), value.encode())
                for name, value in {**self._dialect.id_headers(answer), **answer.headers}.items()
            ),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opening = feed.opening(resumed=answer.resumed)
        body = self._dialect.framed(opening) if opening else self._dialect.greeting
        await send({"type": "http.response.body", "body": body, "more_body": True})
        answer.keep_alive(self._ping_interval_s)
        try:
            while True:
                events = await feed.next(sink)
                body = self._dialect.framed(events) if events else self._dialect.ping
                if feed.is_ended:
                    break
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Interrupted as exc:
            await self._end_interrupted(exc.interrupt, send)
            return
        except RequestError as exc:
            await self._end_failed(exc, send)
            return
        if feed.error is not None:
            self.status_code = feed.error.status_code
        else:
            body += feed.epilogue
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _end_interrupted(self, interrupt: Interrupt, send: Send) -> None:
        """Close a stream without its end: the client knows that [DONE] is missing, and resumes."""
        error = error_of_interrupt(interrupt, self._answer.generation.group_id)
        if interrupt not in (Interrupt.CLIENT_GONE, Interrupt.SHUTDOWN):
            await self._end_failed(error, send)
            return
        self.status_code = error.status_code
        if interrupt is Interrupt.SHUTDOWN:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end_failed(self, error: RequestError, send: Send) -> None:
        """Close a stream with an error that is of no event of its own."""
        self.status_code = error.status_code
        dialect = self._dialect
        body = dialect.framed([Event(b"", dialect.error_body(error), dialect.error_event)])
        await send({"type": "http.response.body", "body": body, "more_body": False})
