"""The service moves to other streams: `jetflock migrate`, killed now and then, and run again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable

from bench.chaos.brokers import url_of
from bench.chaos.fault_class import FaultFailed
from bench.chaos.flock import Flock

_NUM_KILLS = 3
_KILLED_WITHIN_S = (0.5, 8.0)  # of its start: while it prepares, waits for the roles, or closes
_MAX_RUNS = 20  # servers that choose a leader make it give up
_RUN_S = 120.0
_PAUSE_S = 1.0
_FLAGS = ("--to-prefix", "moved", "--num-partitions", "3")


class ServiceMove:
    """From the streams that the flock was started with."""

    def __init__(self, flock: Flock, rng: random.Random, say: Callable[[str], None]) -> None:
        self._flock = flock
        self._rng = rng
        self._say = say

    async def run(self) -> None:
        """Until it has moved. Raises FaultFailed."""
        for _ in range(_NUM_KILLS):
            await self._run_once(self._rng.uniform(*_KILLED_WITHIN_S))
        for _ in range(_MAX_RUNS):
            status, said = await self._run_once(_RUN_S)
            if status == 0:
                self._say("the service has moved, and its old queue is empty")
                return
            self._say(f"jetflock migrate ended with {status}: {said.strip()[-300:]}")
            await asyncio.sleep(_PAUSE_S)
        raise FaultFailed(f"jetflock migrate did not end well in {_MAX_RUNS} runs")

    async def _run_once(self, killed_after_s: float) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jetflock", "migrate"),
            *("--nats-url", url_of(self._flock.brokers), *_FLAGS),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        telling = asyncio.create_task(process.communicate())
        try:
            await asyncio.wait({telling}, timeout=killed_after_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        said, _ = await telling
        assert process.returncode is not None
        return process.returncode, said.decode()
