"""Simulated time: a queue of events, and the processes that they make runnable."""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets
import time
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from shared import event_wait
from shared.telemetry.loop_watch import LoopWatch
from tests.simulation.process_loop import ProcessLoop

_TURN_S = 1e-6
EPOCH_S = 1_800_000_000.0  # unix time at which every schedule begins


class World:
    """Runs one schedule. The same seed gives the same schedule, whatever the machine does.

    A turn of a process takes a microsecond; who of several runnable ones runs first is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.runnable: list[ProcessLoop] = []
        self.running: ProcessLoop | None = None  # the last one that was
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._num_events = 0
        self.is_over = False
        self.trace: list[str] | None = None

    def at(self, when: float, function: Callable[..., Any], *args: Any) -> None:
        """Call `function` at a moment of simulated time; equal moments in the order of calling."""
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, function, args))

    def after(self, delay_s: float, function: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + delay_s, function, *args)

    def run_until(self, when: float) -> None:
        """Everything up to a moment."""
        try:
            self._run_until(when)
        finally:
            self.running = None
            events._set_running_loop(None)

    def _run_until(self, when: float) -> None:
        queue, runnable, draw = self._events, self.runnable, self.rng.random
        while True:
            while runnable:
                idx = int(draw() * len(runnable))
                runnable[idx], runnable[-1] = runnable[-1], runnable[idx]
                runnable.pop().run_turn()
                self.now += _TURN_S
            if not queue or queue[0][0] > when:
                break
            at, _, function, args = heapq.heappop(queue)
            if at > self.now:
                self.now = at
            function(*args)
        self.now = max(self.now, when)

    def _running_loop(self) -> ProcessLoop:
        if self.running is None:
            raise RuntimeError("no running event loop")
        return self.running

    def note(self, who: str, what: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now - 100:9.4f} {who:<10} {what}")

    @property
    def unix_time(self) -> float:
        return EPOCH_S + self.now

    @contextmanager
    def as_time(self) -> Iterator[None]:
        """Clocks and random numbers of the whole interpreter are this world's."""
        draw = random.Random(self.rng.getrandbits(64))
        state = random.getstate()
        random.seed(self.rng.getrandbits(64))
        with (
            patch.object(time, "monotonic", lambda: self.now),
            # Those of asyncio ask the operating system who they are, each time.
            patch.object(asyncio, "get_running_loop", self._running_loop),
            patch.object(events, "get_running_loop", self._running_loop),
            patch.object(events, "_get_running_loop", lambda: self.running),
            # Histograms of it are nobody's business here, and it costs a system call.
            patch.object(LoopWatch.__init__, "__defaults__", (lambda: self.now,)),
            patch.object(time, "time", lambda: EPOCH_S + self.now),
            patch.object(event_wait, "beat_phase_s", lambda: self._running_loop().phase_s),
            patch.object(
                secrets,
                "token_hex",
                lambda num=16: draw.getrandbits(8 * num).to_bytes(num, "big").hex(),
            ),
        ):
            try:
                yield
            finally:
                self.is_over = True
                random.setstate(state)
