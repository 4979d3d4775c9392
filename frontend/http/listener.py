"""The listening socket, how connections are taken from it, the HTTP server on it, and how its
requests come in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import resource
import socket
from collections import deque
from collections.abc import Callable, Generator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http.http_protocol import ConnectionRoom, GuardedProtocol
from shared.errors import ConfigError, RequestError
from shared.machine.host_limits import available_memory_bytes
from shared.telemetry.log import get_logger

_MAX_AT_ONCE = 256  # in one turn of the loop
_NO_ROOM_S = 0.2  # without a free file descriptor; connections wait meanwhile
_KEEP_ALIVE_S = 75  # longer than clients and proxies keep idle connections: they close first
_BACKLOG = 2048
_MANY_FILES = 1 << 20
_LAST_WORDS_S = 1  # for clients to take the end of streams that have been cut already
_GIVING_BACK_S = 2.0  # for those that are cut short then: NATS is asked twice at most

Overload = Callable[[], RequestError | None]

_MAX_IN_A_TURN = 16

log = get_logger(__name__)


class ConnectionAcceptor:
    """Takes as many connections from a listening socket as there are at a time, until it is closed.

    Each gets a protocol of its own. uvloop's own server takes one in each turn of the loop: under
    load the turns are long, and clients would wait in the system's backlog, or be turned away by
    it, where nobody sees them.
    """

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """What was accepted goes on."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: connections end by themselves."""

    def _accept(self) -> None:
        for _ in range(_MAX_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                log.warning("connection_not_accepted", error=str(exc))
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_NO_ROOM_S, self._go_on)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def _connect(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            await self._loop.connect_accepted_socket(self._protocol, connection)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ConfigError when the address is taken or not ours."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as exc:
        raise ConfigError(f"cannot listen on {host}: {exc.strerror}; check --host") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        taken = exc.errno == errno.EADDRINUSE
        advice = "stop what uses it, or choose another --port" if taken else "check --host, --port"
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror}; {advice}") from exc
    listener.setblocking(False)
    return listener


def allow_many_connections() -> None:
    """A stream is an open file: take as many as the system gives without asking."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def connection_room() -> ConnectionRoom:
    """As much as the open files and the memory of this process allow."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unbounded = num_files == resource.RLIM_INFINITY
    return ConnectionRoom.within(
        _MANY_FILES if is_unbounded else num_files, available_memory_bytes()
    )


class HttpServer(uvicorn.Server):
    """uvicorn on sockets of ours, without its own signal handlers: the frontend drains before the
    server stops.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        self._stopping = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        return self._stopping.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._stopping.set()

    async def main_loop(self) -> None:
        """uvicorn's own looks ten times a second whether it is to end."""
        if not await self.on_tick(0):
            await self._stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        acceptors = [ConnectionAcceptor(listener, protocol) for listener in sockets or []]
        self.servers = acceptors  # type: ignore[assignment]  # closed as servers are
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Also until those requests that it cuts short have given back what they hold: a client
        that was catching up with a stream has taken it from its earlier reader.
        """
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=_GIVING_BACK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def http_server(
    app: ASGIApp, overload: Callable[[], RequestError | None] = lambda: None
) -> HttpServer:
    """A server that only speaks HTTP: no WebSocket, no lifespan, no logs of its own.

    While `overload` gives an error, POSTs are answered with it before they cost anything.
    """
    return HttpServer(
        uvicorn.Config(
            app,
            http=functools.partial(  # type: ignore[arg-type]
                GuardedProtocol, overload=overload, room=connection_room()
            ),
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_LAST_WORDS_S,
            backlog=_BACKLOG,
        )
    )


class Entrance:
    """Where requests come in: to the application of the streams that take them.

    What came in before it leads elsewhere is answered where it is.
    Of POSTs that come in together a few begin in each turn of the event loop. A request needs a
    dozen turns to be stored; were thousands begun in one, those before them would wait for all.
    """

    def __init__(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload
        self._num_begun = 0  # in this turn of the loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    def lead_to(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload

    def refusal(self) -> RequestError | None:
        """What POSTs are answered with while there are too many."""
        return self._overload()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._begin()
        await self._app(scope, receive, send)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._num_begun:
            loop.call_soon(self._next_turn)
        if self._num_begun < _MAX_IN_A_TURN and not self._waiting:
            self._num_begun += 1
        else:
            waiting = loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def _next_turn(self) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < _MAX_IN_A_TURN:
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._num_begun += 1
                waiting.set_result(None)
        if self._num_begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
