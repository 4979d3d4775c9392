"""A TCP proxy between NATS and one role, that cuts, freezes or slows its connections."""

from __future__ import annotations

import asyncio
import enum
from typing import cast


class Flow(enum.Enum):
    """What happens to the bytes of a connection."""

    OPEN = "open"
    SWALLOWED = "swallowed"  # half-open: both ends believe in it, nothing arrives
    STALLED = "stalled"  # the role does not read


class _Pipe(asyncio.Protocol):
    """One end of a connection; what it receives goes to `other`."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self.other: _Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self._link.flow is Flow.SWALLOWED:
            return
        if self.other is None or self.other.transport is None:
            self._waiting.append(data)
        else:
            self.other.transport.write(data)

    def join(self, other: _Pipe) -> None:
        """From now on the two are one connection."""
        self.other = other
        if self._waiting and other.transport is not None:
            other.transport.write(b"".join(self._waiting))
            self._waiting.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            if self._link.flow is Flow.SWALLOWED:
                return  # not even the end arrives
            self.other.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        other = self.other
        if other is None or other.transport is None or self._link.flow is Flow.STALLED:
            return
        other.transport.resume_reading()


class _Link:
    """One connection of the role, and ours to the server for it."""

    def __init__(self) -> None:
        self.flow = Flow.OPEN
        self.role = _Pipe(self)
        self.server = _Pipe(self)

    @property
    def is_over(self) -> bool:
        return self.role.transport is None and self.server.transport is None

    def abort(self) -> None:
        for pipe in (self.role, self.server):
            if pipe.transport is not None:
                pipe.transport.abort()


class TcpProxy:
    """Listens on its own port; new connections are whole, whatever was done to earlier ones."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._links: list[_Link] = []
        self._dials: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.port = 0

    async def __aenter__(self) -> TcpProxy:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        self.cut()
        for dial in self._dials:
            dial.cancel()

    def cut(self) -> None:
        """Both ends hear of it."""
        for link in self._links:
            link.abort()
        self._links.clear()

    def half_open(self) -> None:
        """Neither end hears anything any more: they must find out by themselves."""
        for link in self._living():
            link.flow = Flow.SWALLOWED

    def stall(self) -> None:
        """The role stops reading; what it writes arrives."""
        for link in self._living():
            link.flow = Flow.STALLED
            if link.server.transport is not None:
                link.server.transport.pause_reading()

    def unstall(self) -> None:
        for link in self._living():
            if link.flow is Flow.STALLED:
                link.flow = Flow.OPEN
                if link.server.transport is not None:
                    link.server.transport.resume_reading()

    def _living(self) -> list[_Link]:
        self._links = [link for link in self._links if not link.is_over]
        return self._links

    def _accept(self) -> asyncio.Protocol:
        link = _Link()
        self._links.append(link)
        dial = asyncio.get_running_loop().create_task(self._dial(link))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)
        return link.role

    async def _dial(self, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: link.server, "127.0.0.1", self._target_port)
        except OSError:
            link.abort()
            return
        if link.role.transport is None:  # it has gone meanwhile
            link.abort()
            return
        link.server.join(link.role)
        link.role.join(link.server)
