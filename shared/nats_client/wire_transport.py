"""The bytes of a connection to NATS: heard where they arrive, without a task between."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import ParseResult

from nats.aio.transport import Transport

_PORT = 4222

OnBytes = Callable[[bytes], None]
OnEnd = Callable[[Exception | None], None]


class WireProtocol(asyncio.Protocol):
    """Keeps what arrives until somebody listens; `on_writable` hears when a full buffer is empty.

    The first lines of a connection are read one by one, before `listen`.
    """

    def __init__(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable
        self._on_bytes: OnBytes | None = None
        self._on_end: OnEnd | None = None
        self._kept = bytearray()
        self._news = asyncio.Event()  # something was kept, or the end is there
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.closed = asyncio.Event()
        self._error: Exception | None = None  # that ended it

    @property
    def is_full(self) -> bool:
        """What is written now waits for a server that does not read."""
        return not self._can_write.is_set()

    def data_received(self, data: bytes) -> None:
        if self._on_bytes is not None:
            self._on_bytes(data)
        else:
            self._kept += data
            self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        self.closed.set()
        self._can_write.set()
        self._news.set()
        if self._on_end is not None:
            self._on_end(exc)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()
        self._on_writable()

    def listen(self, on_bytes: OnBytes, on_end: OnEnd) -> None:
        """From now on they hear everything, what was kept first."""
        self._on_bytes, self._on_end = on_bytes, on_end
        kept = bytes(self._kept)
        self._kept.clear()
        if kept:
            on_bytes(kept)
        if self.closed.is_set():
            on_end(self._error)

    async def readline(self) -> bytes:
        """With its end; what there is when the connection has ended."""
        while (end := self._kept.find(b"\n")) < 0 and not self.closed.is_set():
            self._news.clear()
            await self._news.wait()
        line = bytes(self._kept[: end + 1] if end >= 0 else self._kept)
        del self._kept[: len(line)]
        return line

    async def drain(self) -> None:
        """Raises what has ended the connection."""
        await self._can_write.wait()
        if self.closed.is_set():
            raise self._error or ConnectionResetError("the connection has ended")


class WireTransport(Transport):
    """One TCP connection, with TLS where that is asked for. A new one is made for each attempt."""

    def __init__(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable
        self._protocol = WireProtocol(on_writable)
        self._transport: asyncio.Transport | None = None  # uvloop's is one by its methods

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            self._transport, _ = await loop.create_connection(
                lambda: self._protocol, uri.hostname or "", uri.port or _PORT
            )

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        assert self._transport is not None, "connect() comes first"
        # A protocol of its own: that of the plain connection may hear of its end meanwhile.
        protocol = WireProtocol(self._on_writable)
        host = uri if isinstance(uri, str) else uri.hostname
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(
                self._transport, protocol, ssl_context, server_hostname=host
            )
        self._transport, self._protocol = cast(asyncio.Transport, transport), protocol

    def listen(self, on_bytes: OnBytes, on_end: OnEnd) -> None:
        """Both are called from the event loop, `on_end` once and last."""
        self._protocol.listen(on_bytes, on_end)

    @property
    def takes_more(self) -> bool:
        """Whether what is written goes out now, as far as is known."""
        return self.is_open and not self._protocol.is_full

    @property
    def is_open(self) -> bool:
        """As far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, payload: bytes) -> None:
        """Without effect on a connection that has ended: whoever drains it is told."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def read(self, buffer_size: int) -> bytes:
        raise NotImplementedError("it is listened to")

    async def readline(self) -> bytes:
        return await self._protocol.readline()

    async def drain(self) -> None:
        await self._protocol.drain()

    async def wait_closed(self) -> None:
        if self._transport is not None:
            await self._protocol.closed.wait()

    def close(self) -> None:
        """What was written is sent first."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """What was written is lost."""
        if self._transport is not None:
            self._transport.abort()

    def at_eof(self) -> bool:
        return not self.is_open

    def __bool__(self) -> bool:
        """Whether there was a connection: nats-py asks it."""
        return self._transport is not None
