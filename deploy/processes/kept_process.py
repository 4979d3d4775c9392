"""Keeps one program of the tree running: starts its process, and again when that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from deploy.processes import die_with_parent
from shared.config import ENV_PREFIX
from shared.errors import ConfigError
from shared.event_wait import wait_event

_MAX_EARLY_DEATHS = 4
_MAX_FAILED_STARTS = 3  # then it counts as failed, and is tried on
_MAX_REASON_CHARS = 300
_EXIT_CONFIG_ERROR = 2
_LIVED_LONG_S = 10.0  # of a program whose readiness nobody watches
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 5.0
_LONGEST_START_DELAY_S = 60.0  # a start may take all cores for minutes
_SERVED_LONG_S = 10.0  # a process that served so long had started well: begin anew
_TAIL_LINES = 20
_MAX_LINE_BYTES = 64 << 10

LineSink = Callable[[str], None]


class ChildProcess:
    """A running child: it dies with its parent, and has a process group of its own.

    Its output is passed on by line; `tail` holds its last lines, and `wait` returns when all of it
    is read.
    """

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


class StartGate:
    """Lets workers load before their NATS is up: a pipe into which nobody writes, whose end tells
    all children that they may go on.
    """

    environ = {f"{ENV_PREFIX}START_GATE": "true"}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = os.pipe()

    @property
    def stdin(self) -> int:
        """The standard input of a child that is started now; behind an open gate one that has
        ended.
        """
        return subprocess.DEVNULL if self._ends is None else self._ends[0]

    def open(self) -> None:
        """Opens the gate for good; without effect the second time."""
        ends, self._ends = self._ends, None
        for fd in ends or ():
            os.close(fd)


class Backoff:
    """How long to wait before a process that died is started again.

    0.2 s after the first death, doubled after each further one in a row, up to 5 s; up to a
    minute for a process that dies before it serves, however long it takes to die.
    """

    def __init__(self) -> None:
        self.num_deaths_in_a_row = 0
        self.num_failed_starts = 0  # in a row

    def next_delay_s(self, served_s: float | None) -> float:
        """`served_s`: since when it had been ready; None when it never was."""
        if served_s is not None and served_s >= _SERVED_LONG_S:
            self.num_deaths_in_a_row = 0
        self.num_deaths_in_a_row += 1
        self.num_failed_starts = self.num_failed_starts + 1 if served_s is None else 0
        longest_s = _LONGEST_START_DELAY_S if served_s is None else _LONGEST_DELAY_S
        return float(min(longest_s, _FIRST_DELAY_S * 2 ** min(self.num_deaths_in_a_row - 1, 16)))


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a program: its command line, and an id that no other start has."""

    command: Sequence[str]
    env: Mapping[str, str]
    id: str = ""


DeathCallback = Callable[[Launch, int], Awaitable[None]]


class ProgramFailed(ConfigError):
    """A program refused its configuration, or died again and again, before all was ready."""


class KeptProcess:
    """A program that is to run until `stop`.

    Until `mark_ready` a program that refuses its configuration, or keeps dying, is a failure of
    the whole; afterwards it is started again for as long as it takes.
    """

    def __init__(
        self,
        name: str,
        make_launch: Callable[[], Launch],
        sink: LineSink,
        say: Callable[[str], None],
        on_death: DeathCallback | None = None,
        gate: StartGate | None = None,
        meanwhile: str = "",
        *,
        reports_ready: bool = False,
    ) -> None:
        """`reports_ready`: somebody calls `note_serving` when a start has come that far."""
        self.name = name
        self.launch = make_launch()
        self._make_launch = make_launch
        self._sink = sink
        self._say = say
        self._on_death = on_death
        self._gate = gate
        self._meanwhile = f"; {meanwhile}" if meanwhile else ""  # what its absence means
        self._child: ChildProcess | None = None
        self._reports_ready = reports_ready
        self._serving_since: float | None = None  # of this start, by the event loop's clock
        self.failure = ""  # the last words, once start after start has failed
        self._is_ready = False
        self._was_run = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.is_running else None

    def mark_ready(self) -> None:
        self._is_ready = True

    @property
    def is_serving(self) -> bool:
        """Whether somebody has said so of this start."""
        return self._serving_since is not None

    def note_serving(self) -> None:
        """This start has become ready."""
        if self._serving_since is None:
            self._serving_since = asyncio.get_running_loop().time()
            self.failure = ""

    async def run(self) -> None:
        """Returns after `stop`. Raises ProgramFailed."""
        self._was_run = True
        backoff = Backoff()
        clock = asyncio.get_running_loop().time
        try:
            while not self._stopping.is_set():
                started_at = clock()
                status = await self._run_once()
                if self._stopping.is_set():
                    return
                delay_s = backoff.next_delay_s(self._served_s(started_at, clock()))
                self._check_worth_another(status, backoff.num_deaths_in_a_row)
                self._note_failure(status, backoff.num_failed_starts)
                again = f"starting it again in {delay_s:g} s"
                self._say(f"{self.name} {died(status)}; {again}{self._meanwhile * self._is_ready}")
                await wait_event(self._stopping, delay_s)
                self.launch = self._make_launch()
        finally:
            self._ended.set()

    def renew(self) -> None:
        """SIGTERM for this start; another follows."""
        if self._child is not None:
            self._child.terminate()

    def ask_to_stop(self) -> None:
        """SIGTERM: how a role takes the first and the second is its own business."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()

    async def wait_ended(self) -> None:
        """Until it has ended for good."""
        if self._was_run:
            await self._ended.wait()

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL for what is left after `timeout_s`."""
        self.ask_to_stop()
        if self._was_run:
            await wait_event(self._ended, timeout_s)
        self.kill()

    def kill(self) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    def _served_s(self, started_at: float, now: float) -> float | None:
        """How long the start that is over was of use; None: never."""
        if self._reports_ready:
            return None if self._serving_since is None else now - self._serving_since
        return now - started_at if now - started_at >= _LIVED_LONG_S else None

    def _note_failure(self, status: int, num_failed_starts: int) -> None:
        is_refusal = num_failed_starts and status == _EXIT_CONFIG_ERROR
        if is_refusal or num_failed_starts >= _MAX_FAILED_STARTS:
            words = self._last_words()[:_MAX_REASON_CHARS]
            self.failure = f"it {died(status)}: {words or 'it said nothing'}"

    async def _run_once(self) -> int:
        self._serving_since = None
        env, stdin = dict(self.launch.env), subprocess.DEVNULL
        if self._gate is not None:
            env |= self._gate.environ
            stdin = self._gate.stdin
        self._child = await ChildProcess.start(self.launch.command, env, self._sink, stdin)
        if self._stopping.is_set():
            self._child.terminate()
        try:
            status = await self._child.wait()
        finally:
            self._child.kill()
        if self._on_death is not None:
            await self._on_death(self.launch, status)
        return status

    def _check_worth_another(self, status: int, num_deaths_in_a_row: int) -> None:
        if self._is_ready:
            return
        if status == _EXIT_CONFIG_ERROR:
            raise ProgramFailed(self._last_words() or f"{self.name} refused to start")
        if num_deaths_in_a_row >= _MAX_EARLY_DEATHS:
            raise ProgramFailed(
                f"{self.name} died {num_deaths_in_a_row} times before it was ready "
                f"({died(status)}): {self._last_words() or 'it said nothing'}"
            )

    def _last_words(self) -> str:
        assert self._child is not None
        return next((line for line in reversed(self._child.tail) if line.strip()), "")


def died(status: int) -> str:
    """In words."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
