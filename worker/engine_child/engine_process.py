"""The I/O process's side: starts the engine as a child, hands it commands, hears its events."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_frames import FrameReader, decode_event, encode_frame
from worker.engine_link.engine_launch import EngineLaunch
from worker.engine_link.engine_messages import EngineCommand, EngineEvent

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
        self._commands: list[bytes] = []  # since the loop's last turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self._on_event(decode_event(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed()

    def send(self, command: EngineCommand) -> None:
        """In one piece with all commands of this turn of the loop: a write wakes the engine.

        Without effect once the engine is gone: its exit is told by `on_closed`.
        """
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._flush)
        self._commands.append(encode_frame(command))

    def _flush(self) -> None:
        commands, self._commands = self._commands, []
        if commands and self._transport is not None:
            self._transport.write(b"".join(commands))

    def close(self) -> None:
        """The engine takes the end of the stream as the order to exit."""
        self._flush()
        if self._transport is not None:
            self._transport.close()


class EngineProcess:
    """An engine as a child process that cannot outlive us.

    All callbacks run on the event loop: `on_event` for each event, in order; then `on_exit` once,
    with the return code, when the process is reaped and its last event has been delivered.
    `start` comes first; an engine that has exited is not started again, a new one is made.
    `launch` is one that runs already, by the same configuration.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_event: OnEvent,
        on_exit: OnExit,
        launch: EngineLaunch | None = None,
    ) -> None:
        self._config = config
        self._on_exit = on_exit
        self._launch = launch
        self._connection = EngineConnection(on_event, self._on_connection_closed)
        self._child: subprocess.Popen[bytes] | None = None
        self._is_connected = False
        self._exited = asyncio.Event()

    @property
    def is_started(self) -> bool:
        return self._child is not None

    @property
    def pid(self) -> int:
        assert self._child is not None, "start() comes first"
        return self._child.pid

    async def start(self) -> None:
        """Starts the child; it reports its loading by events."""
        loop = asyncio.get_running_loop()
        launch = self._launch or EngineLaunch.start(self._config)
        self._child = launch.process
        try:
            await loop.create_unix_connection(lambda: self._connection, sock=launch.connection)
            self._is_connected = True
            pid_fd = os.pidfd_open(self._child.pid)  # readable when it has exited
            loop.add_reader(pid_fd, self._on_process_exited, pid_fd)
        except BaseException:
            self._connection.close()
            launch.drop()
            raise

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
        if self._child is not None:
            self._child.kill()  # nothing, when it has exited

    @property
    def returncode(self) -> int:
        assert self._child is not None, "start() comes first"
        returncode = self._child.returncode
        assert returncode is not None, "still running"
        return returncode

    def _on_process_exited(self, pid_fd: int) -> None:
        assert self._child is not None, "it was watched"
        asyncio.get_running_loop().remove_reader(pid_fd)
        os.close(pid_fd)
        self._child.wait()
        self._maybe_finish()

    def _on_connection_closed(self) -> None:
        self._is_connected = False
        self._maybe_finish()

    def _maybe_finish(self) -> None:
        """Both the process and its socket must be at their end: events may outlive the process."""
        if self._is_connected or self._child is None or self._child.returncode is None:
            return
        if not self._exited.is_set():
            self._exited.set()
            self._on_exit(self.returncode)


class EngineMaker:
    """Makes the engines of a worker, one after the other; the first one may be running already."""

    def __init__(
        self, engine_config: Callable[[Path], EngineConfig], launch: EngineLaunch | None = None
    ) -> None:
        self._engine_config = engine_config
        self._launch = launch
        self._last: EngineProcess | None = None

    def __call__(self, path: Path, on_event: OnEvent, on_exit: OnExit) -> EngineProcess:
        config = self._engine_config(path)
        launch, self._launch = self._launch, None
        if launch is not None and launch.model_path != config.model_path:
            launch.drop()  # other weights have taken the place of those that it loads
            launch = None
        self._last = EngineProcess(config, on_event, on_exit, launch)
        return self._last

    @property
    def pid(self) -> int:
        """The process id of the last engine; 0: none was started."""
        return 0 if self._last is None or not self._last.is_started else self._last.pid
