"""HTTP/1.1 connections whose heads are bounded in time and size, and whose number is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from frontend.http.connected_client import PIECE_WRITER, WHOLE_BODY, ConnectedClient
from frontend.http.error_response import retry_headers
from frontend.text.event_writer import error_body
from shared.errors import (
    HeadersTooLarge,
    InvalidRequest,
    RequestError,
    RequestTimeout,
    ServiceUnavailable,
)

MAX_HEAD_BYTES = 64 * 1024
_MAX_SURPLUS = 2048
_CHUNKED = b"transfer-encoding: chunked\r\n"
_STREAM_BYTES = 64 * 1024  # of the frontend's memory, an open stream and its connection
_LINGER_S = 2.0  # of reading on, after a refusal
_SURPLUS_HEAD_S = 2.0  # for the head, on a connection that there was no room for
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class ConnectionRoom:
    """How many connections are served, and how many more are heard.

    Of those more, what only looks is answered, health checks among it, and the rest refused; many
    clients would lose an answer that comes before their request. What is above those, too, is
    refused unheard.
    """

    num_served: int
    num_surplus: int

    @classmethod
    def within(cls, num_files: int, num_bytes: int) -> Self:
        """Of so many files, some are for other things; half of the memory may be for streams."""
        num_spare = min(_MAX_SURPLUS, num_files // 8)
        num_served = min(num_files - 2 * num_spare, num_bytes // 2 // _STREAM_BYTES)
        return cls(max(1, num_served), num_spare)


class _JoinedHead:
    """The transport of an answer, which keeps its head until there is something behind it: both go
    out in one piece.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self._cycle.response_started:  # 100 Continue
            self._transport.write(data)
        elif self._head:
            self._cycle.transport = self._transport
            self._transport.write(self._head + data)
        else:
            self._head = data

    def close(self) -> None:
        self._transport.write(self._head)
        self._transport.close()


class PieceWriter:
    """Writes pieces of an answer's body straight to its connection, while it is open: else they
    are for the server's `send`, which waits for a slow client, and knows answers without chunks.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_open(self) -> bool:
        cycle = self._cycle
        is_slow = cycle.flow.write_paused or cycle.disconnected
        return bool(cycle.chunked_encoding) and not is_slow

    def write(self, piece: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class _PlainTransport:
    """The transport of an answer to HTTP/1.0, which knows no chunks: one without a length ends with
    its connection.
    """

    __slots__ = ("_has_chunks", "_has_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._has_head = self._has_chunks = False

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self._has_head:
            self._has_head = True
            self._has_chunks = _CHUNKED in data
            data = data.replace(_CHUNKED, b"")
        elif self._has_chunks:
            num_bytes, _, rest = data.partition(b"\r\n")
            data = rest[: int(num_bytes, 16)]
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()


class GuardedProtocol(HttpToolsProtocol):
    """Refuses, in OpenAI's error shape, what would never become a request.

    A head (request line and headers) must be whole `head_timeout_s` after its first byte, and after
    the connection was made; a client that trickles it in holds a connection no longer than that.
    """

    head_timeout_s = 15.0

    def __init__(
        self,
        *args: Any,
        overload: Callable[[], RequestError | None],
        room: ConnectionRoom,
        **options: Any,
    ) -> None:
        """`overload` says why no request can be taken now; None: they can."""
        super().__init__(*args, **options)
        self._overload = overload
        self._room = room
        self._client = ConnectedClient()
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of a head that is not whole yet
        self._is_head_whole = False  # since the last data
        self._is_in_body = False
        self._refusal: RequestError | None = None
        self._is_refused = False
        self._is_surplus = False  # of the connections that there is room for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_surplus = self._num_surplus > 0
        if self._num_surplus > self._room.num_surplus:
            self._refuse(self._no_room())
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._client.go()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_new_request(data):
            self._is_surplus = self._is_surplus and self._num_surplus > 0
            refusal = self._no_room() if self._is_surplus else self._overload()
            if refusal is not None:
                self._refuse(refusal)
                return
        self._is_head_whole = False
        was_in_body = self._is_in_body  # its last piece ends it, and is no head
        self._parse(data)
        if self._is_head_whole or self._is_in_body or was_in_body:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        elif self._head_timer is None:
            self._start_timer()

    def _parse(self, data: bytes) -> None:
        """As the base class does, but a wish to speak another protocol (HTTP/2, WebSocket) is
        overlooked, as RFC 9110 (7.8) allows: the parser would leave the body behind it unread.
        """
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    if not self._is_upgrade:
                        return
                    rest = rest[upgrade.args[0] :]
                    self.parser.feed_data(self._head_without_upgrade())
        except httptools.HttpParserError:
            self.send_400_response("")

    @property
    def _is_upgrade(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    @property
    def _num_surplus(self) -> int:
        """Connections that there is no room for; negative: room that is left."""
        return len(self.connections) - self._room.num_served

    def _no_room(self) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"This frontend serves no more than {self._room.num_served} connections at a time, as "
            "its open files and half of its memory allow."
        )

    def _is_new_request(self, data: bytes) -> bool:
        """Whether this begins what may cost something; looked at before anything is parsed."""
        return not self._is_in_body and not self._head_bytes and data.startswith(b"POST ")

    def on_headers_complete(self) -> None:
        if self._is_upgrade:
            return
        self._stop_timer()
        self._is_head_whole = True
        self._refusal = _head_error(self.headers)
        if self._refusal is not None:
            raise self._refusal
        self._client.enter(self.scope)  # type: ignore[arg-type]
        super().on_headers_complete()
        self._is_in_body = True
        if self.cycle is None:
            return
        self.scope[PIECE_WRITER] = PieceWriter(self.cycle)  # type: ignore[literal-required]
        if self.scope["http_version"] == "1.0":
            self.cycle.transport = _PlainTransport(self.transport)  # type: ignore[assignment]
            self.cycle.waiting_for_100_continue = False
        elif self.scope["method"] != "HEAD":  # its answer is a head alone
            self.cycle.transport = _JoinedHead(self.cycle)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._is_in_body = False
        self.scope[WHOLE_BODY] = True  # type: ignore[literal-required]
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by the base class for whatever the parser refuses."""
        self._refuse(self._refusal or InvalidRequest("This is not HTTP.", code="invalid_http"))

    def _refuse(self, error: RequestError) -> None:
        """Answer, and close once the client has; while an answer is on its way, only close."""
        self._stop_timer()
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
            self.cycle.disconnected = True  # what reads its body ends, and is not answered
            self.cycle.message_event.set()
            self._client.go()
        body = error_body(error)
        head = (
            f"HTTP/1.1 {error.status_code} {_REASONS[error.status_code]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in retry_headers(error).items())
            + "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        # Closed with unread data, the socket would be reset, and the answer lost with it.
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_timeout_s, self._on_head_timeout)

    @property
    def _head_timeout_s(self) -> float:
        return _SURPLUS_HEAD_S if self._is_surplus else self.head_timeout_s

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer()  # the answer before it still goes out
            return
        self._refuse(RequestTimeout(f"The head was not whole after {self._head_timeout_s:g} s."))


def _head_error(headers: list[tuple[bytes, bytes]]) -> RequestError | None:
    """Beyond what the parser sees: a proxy before us must read a head as we do (RFC 9112, 3.2 and
    6.1).
    """
    num_bytes = num_hosts = 0
    for name, value in headers:
        num_bytes += len(name) + len(value)
        if name == b"host":
            num_hosts += 1
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            return InvalidRequest(
                f"Transfer-Encoding {value.decode('latin-1')!r} is not understood, only 'chunked'.",
                code="invalid_http",
            )
    if num_hosts > 1:
        return InvalidRequest(f"The head has {num_hosts} Host fields.", code="invalid_http")
    return _too_large() if num_bytes > MAX_HEAD_BYTES else None


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"Request line and headers take more than {MAX_HEAD_BYTES} bytes.")
