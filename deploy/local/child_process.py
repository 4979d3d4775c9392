"""One child process: dies with its parent, in a group of its own, its output passed on by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from deploy.local import die_with_parent

_TAIL_LINES = 20
_MAX_LINE_BYTES = 64 << 10

LineSink = Callable[[str], None]


class ChildProcess:
    """A running child. `tail` holds its last lines; `wait` returns when all its output is read."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, sink: LineSink
    ) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = process
        self._output = output
        self._sink = sink

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        sink: LineSink,
        stdin: int = subprocess.DEVNULL,
    ) -> Self:
        """Call it from the main thread: the child dies with the thread that started it."""
        # A pipe of our own: asyncio's `wait` would wait for the end of its pipes too, which a
        # grandchild may hold open.
        read_fd, write_fd = os.pipe()
        try:
            output = await _reader(read_fd)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(die_with_parent.__file__))),
                *(str(os.getpid()), *command),
                env=dict(env),
                stdin=stdin,
                stdout=write_fd,
                stderr=write_fd,
                start_new_session=True,  # a Ctrl-C on the terminal reaches the supervisor alone
            )
        finally:
            os.close(write_fd)
        return cls(process, output, sink)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        """The exit status (negative: the signal). Reads the child's output until then."""
        pump = asyncio.ensure_future(self._pump())
        try:
            status = await self._process.wait()
            self.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(pump), 0.5)
            return status
        finally:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump

    def terminate(self) -> None:
        """Ask the child, and only it, to end."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child and whatever it left in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _pump(self) -> None:
        rest = b""
        while data := await self._output.read(_MAX_LINE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._emit(line)
        if rest:
            self._emit(rest)

    def _emit(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.tail.append(text)
        self._sink(text)


async def _reader(read_fd: int) -> asyncio.StreamReader:
    """Reads the pipe until its end, and closes it then."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read_fd, "rb"))
    return reader
