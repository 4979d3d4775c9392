"""The I/O process's side: starts the engine as a child, hands it commands, hears its events."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import worker
from worker.engine.config import EngineConfig
from worker.engine_frames import FrameReader, decode_event, encode_frame
from worker.engine_messages import EngineCommand, EngineEvent

OnEvent = Callable[[EngineEvent], None]
OnExit = Callable[[int], None]


class EngineHandle(Protocol):
    """What the I/O process needs of an engine; tests put one in a thread behind it."""

    def send(self, command: EngineCommand) -> None: ...

    async def stop(self, timeout_s: float) -> int: ...

    def kill(self) -> None: ...


class EngineConnection(asyncio.Protocol):
    """The socket to an engine: calls `on_event` for each event, in order, then `on_closed`."""

    def __init__(self, on_event: OnEvent, on_closed: Callable[[], None]) -> None:
        self._on_event = on_event
        self._on_closed = on_closed
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self._on_event(decode_event(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed()

    def send(self, command: EngineCommand) -> None:
        """Buffered. Without effect once the engine is gone: its exit is told by `on_closed`."""
        if self._transport is not None:
            self._transport.write(encode_frame(command))

    def close(self) -> None:
        """The engine takes the end of the stream as the order to exit."""
        if self._transport is not None:
            self._transport.close()


class EngineProcess:
    """An engine as a child process that cannot outlive us.

    All callbacks run on the event loop: `on_event` for each event, in order; then `on_exit` once,
    with the return code, when the process is reaped and its last event has been delivered.
    `start` comes first; an engine that has exited is not started again, a new one is made.
    """

    def __init__(self, config: EngineConfig, on_event: OnEvent, on_exit: OnExit) -> None:
        self._config = config
        self._on_exit = on_exit
        self._connection = EngineConnection(on_event, self._on_connection_closed)
        self._child: asyncio.SubprocessTransport | None = None
        self._is_connected = False
        self._exited = asyncio.Event()

    @property
    def pid(self) -> int:
        assert self._child is not None, "start() comes first"
        return self._child.get_pid()

    async def start(self) -> None:
        """Starts the child; it reports its loading by events."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            await loop.create_unix_connection(lambda: self._connection, sock=ours)
            self._is_connected = True
            child, _ = await loop.subprocess_exec(
                lambda: _ChildWatch(self._maybe_finish),
                *_command_line(self._config, theirs.fileno()),
                stdin=None,
                stdout=None,
                stderr=None,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
            )
            self._child = child
            self._maybe_finish()  # it may have failed already
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    def send(self, command: EngineCommand) -> None:
        """Cheap: encodes and buffers."""
        self._connection.send(command)

    async def wait(self) -> int:
        """The return code, after `on_exit` has been called."""
        await self._exited.wait()
        return self.returncode

    async def stop(self, timeout_s: float) -> int:
        """Lets the engine end its step and exit; kills it when that takes longer."""
        self._connection.close()
        try:
            async with asyncio.timeout(timeout_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """SIGKILL. `on_exit` follows."""
        if self._child is not None and self._child.get_returncode() is None:
            self._child.kill()

    @property
    def returncode(self) -> int:
        assert self._child is not None, "start() comes first"
        returncode = self._child.get_returncode()
        assert returncode is not None, "still running"
        return returncode

    def _on_connection_closed(self) -> None:
        self._is_connected = False
        self._maybe_finish()

    def _maybe_finish(self) -> None:
        """Both the process and its socket must be at their end: events may outlive the process."""
        if self._is_connected or self._child is None or self._child.get_returncode() is None:
            return
        if not self._exited.is_set():
            self._child.close()
            self._exited.set()
            self._on_exit(self.returncode)


class _ChildWatch(asyncio.SubprocessProtocol):
    """Hears that the child has exited."""

    def __init__(self, on_process_exited: Callable[[], None]) -> None:
        self._on_process_exited = on_process_exited

    def process_exited(self) -> None:
        self._on_process_exited()


def _command_line(config: EngineConfig, socket_fd: int) -> list[str]:
    # -P: a folder named `worker` in the current directory is not ours.
    return [sys.executable, "-P", "-m", "worker.engine", str(socket_fd), config.to_json()]


def _environment() -> dict[str, str]:
    """Ours, and the folder that `worker` was imported from.

    By default the engine's threads sleep while they wait for each other. Spinning, they take the
    core that the other one of them, or we, would need: on busy cores steps took 3 to 15 times as
    long.
    """
    assert worker.__file__ is not None
    folder = str(Path(worker.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    python_path = os.pathsep.join(filter(None, [folder, inherited]))
    return {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"PYTHONPATH": python_path}
