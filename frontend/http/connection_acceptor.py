"""Takes connections from a listening socket, as many as there are at a time.

uvloop's own server takes one in each turn of the loop: under load the turns are long, and clients
would wait in the system's backlog, or be turned away by it, where nobody sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from shared.telemetry.log import get_logger

_MAX_AT_ONCE = 256  # in one turn of the loop
_NO_ROOM_S = 0.2  # without a free file descriptor; connections wait meanwhile

log = get_logger(__name__)


class ConnectionAcceptor:
    """Accepts until it is closed; each connection gets a protocol of its own."""

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
