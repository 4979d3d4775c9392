"""A TCP proxy before a nats-server, that cuts, freezes or slows the connections to it."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import cast


class Flow(enum.Enum):
    """What happens to the bytes of a connection."""

    OPEN = "open"
    SWALLOWED = "swallowed"  # half-open: both ends believe in it, nothing arrives
    STALLED = "stalled"  # the role does not read


class Side(enum.Enum):
    """One end of a connection."""

    DIALER = "dialer"
    TARGET = "target"


class _Pipe(asyncio.Protocol):
    """One end of a connection; what it receives goes to `other`."""

    def __init__(self, link: _Link, side: Side) -> None:
        self._link = link
        self._side = side
        self.other: _Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._delayed: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self.is_held:
            self.transport.pause_reading()

    @property
    def is_held(self) -> bool:
        return self._side in self._link.held

    def obey(self) -> None:
        """`held` has changed."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.is_held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._link.flow is Flow.SWALLOWED:
            return
        if self._link.delay_s or self._delayed:  # nothing overtakes what is still on its way
            self._delayed.append(data)
            asyncio.get_running_loop().call_later(self._link.delay_s, self._pass_delayed)
        else:
            self._pass(data)

    def _pass_delayed(self) -> None:
        self._pass(self._delayed.popleft())

    def _pass(self, data: bytes) -> None:
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
        if other.is_held:
            return
        other.transport.resume_reading()


class _Link:
    """One connection of the role, and ours to the server for it."""

    def __init__(self, delay_s: float, held: set[Side]) -> None:
        self.flow = Flow.OPEN
        self.delay_s = delay_s
        self.held = held
        self.role = _Pipe(self, Side.DIALER)
        self.server = _Pipe(self, Side.TARGET)

    @property
    def is_over(self) -> bool:
        return self.role.transport is None and self.server.transport is None

    def abort(self) -> None:
        for pipe in (self.role, self.server):
            if pipe.transport is not None:
                pipe.transport.abort()


class TcpProxy:
    """Listens on its own port; new connections are whole, whatever was done to earlier ones."""

    def __init__(self, target_port: int, *, delay_s: float = 0.0) -> None:
        """`delay_s`: of each direction."""
        self._target_port = target_port
        self._delay_s = delay_s
        self._is_swallowing = False
        self._held: set[Side] = set()
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

    def swallow(self) -> None:
        """The same, with all connections to come."""
        self._is_swallowing = True
        self.half_open()

    def hold(self, *sides: Side) -> None:
        """What these sides send waits from now on, as behind a network that drops packets."""
        self._held.update(sides)
        self._tell_held()

    def release(self, *sides: Side) -> None:
        """What these sides have sent meanwhile arrives."""
        self._held.difference_update(sides)
        self._tell_held()

    def delay(self, delay_s: float) -> None:
        """Of each direction, for what is sent from now on."""
        self._delay_s = delay_s
        for link in self._living():
            link.delay_s = delay_s

    def _tell_held(self) -> None:
        for link in self._living():
            link.role.obey()
            link.server.obey()

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
        link = _Link(self._delay_s, self._held)
        if self._is_swallowing:
            link.flow = Flow.SWALLOWED
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
