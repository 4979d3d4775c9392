"""Tokens that the workers have generated, over all their lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from bench.chaos.http_stream import HttpStream
from bench.chaos.member import Member

_COUNTER = "jetflock_generation_tokens_total{"
_INTERVAL_S = 0.5


class WorkMeter:
    """Reads the workers' own counters; what a worker said last before it died stays counted."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}  # worker incarnation -> tokens

    @property
    def num_generated(self) -> int:
        return int(sum(self._tokens.values()))

    async def run(self, workers: Sequence[Member]) -> None:
        """Until cancelled."""
        while True:
            await asyncio.gather(*map(self.read, workers))
            await asyncio.sleep(_INTERVAL_S)

    async def read(self, worker: Member) -> None:
        """What it has generated so far; nothing when it does not answer."""
        incarnation = worker.incarnation
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with HttpStream(worker.http_port, silence_s=1.0) as http:
                await http.send("GET", "/metrics", {"Connection": "close"})
                page = (await http.body()).decode()
            for line in page.splitlines():
                if line.startswith(_COUNTER) and incarnation == worker.incarnation:
                    self._tokens[incarnation] = float(line.rsplit(" ", 1)[1])
