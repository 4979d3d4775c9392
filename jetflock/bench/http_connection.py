"""HTTP/1.1 on one connection, at the least cost a streamed event can have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

import httptools


class ConnectionCut(ConnectionError):
    """The server closed the connection before the end of its answer."""


class StaleConnection(ConnectionError):
    """A connection that was kept was closed before anything of an answer came: send it again."""


class ResponseReader(Protocol):
    """Who is told of an answer while it arrives; must not raise."""

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None: ...

    def feed(self, data: bytes, now: float) -> None: ...

    def end(self, now: float) -> None: ...


class HttpConnection(asyncio.Protocol):
    """One request at a time; the clock is read once for all that arrives together."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: ResponseReader | None = None
        self._over: asyncio.Future[None] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._now = 0.0
        self._num_answers = 0
        self._has_begun = False
        self._ends_with_connection = False
        self.is_usable = True

    async def exchange(self, payload: bytes, reader: ResponseReader) -> None:
        """Send a whole request, and feed the answer to `reader` until its end.

        Raises ConnectionCut or StaleConnection.
        """
        assert self._transport is not None
        assert self._over is None
        self._over = asyncio.get_running_loop().create_future()
        self._reader, self._has_begun = reader, False
        self._transport.write(payload)
        try:
            await self._over
        finally:
            self._over = self._reader = None

    def close(self) -> None:
        """Closes it at once, whatever is on its way."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(ConnectionCut(f"the answer is no HTTP: {exc}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        if self._ends_with_connection and exc is None:
            self._now = time.perf_counter()
            self.on_message_complete()
        elif not self._has_begun and self._num_answers:
            self._fail(StaleConnection())
        else:
            self._fail(ConnectionCut("the server closed the connection"))

    # httptools' callbacks.

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        headers = self._headers
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            self._ends_with_connection = True
        if self._reader is not None:
            self._reader.head(self._parser.get_status_code(), headers)

    def on_body(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(data, self._now)

    def on_message_complete(self) -> None:
        self._num_answers += 1
        self._ends_with_connection = False
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
        if self._reader is not None:
            self._reader.end(self._now)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _fail(self, exc: ConnectionError) -> None:
        self.is_usable = False
        if self._over is not None and not self._over.done():
            self._over.set_exception(exc)
