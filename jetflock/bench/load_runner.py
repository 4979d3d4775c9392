"""Puts the load of one stage on the server, and shows it while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jetflock.bench.load_stage import LoadStage
from jetflock.bench.prompt import Prompt
from jetflock.bench.request_record import RequestRecord
from jetflock.bench.request_sender import RequestSender

_BAR_EVERY_S = 0.2
_LINE_EVERY_S = 10.0


def arrival_times_s(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """When requests of an open loop are due: seconds from the start, endlessly, `rate` a second.

    Pauses are gamma-distributed with shape `burstiness` and mean 1 / rate: 1 is a Poisson process,
    less comes in bursts, more is more even.
    """
    pauses = (rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in itertools.count())
    return itertools.accumulate(pauses)


@dataclass(slots=True)
class StageRun:
    """What came of a stage so far; a progress bar reads it while it grows."""

    stage: LoadStage
    started_at: float
    records: list[RequestRecord] = field(default_factory=list)  # in the order of their ends
    num_sent: int = 0
    max_running: int = 0
    ended_at: float = 0.0
    cpu_s: float = 0.0  # of this process

    @property
    def num_running(self) -> int:
        return self.num_sent - len(self.records)


class LoadRunner:
    """Runs one stage after the other; `seed` draws the arrivals."""

    def __init__(self, sender: RequestSender, seed: int) -> None:
        self._sender = sender
        self._seed = seed

    async def run(self, run: StageRun, prompts: Iterator[Prompt]) -> None:
        """Until all requests are answered. When it is cancelled, `run` has those that were."""
        cpu_before_s = time.process_time()
        try:
            if run.stage.rate is None:
                await self._closed_loop(run, prompts)
            else:
                await self._open_loop(run, prompts)
        finally:
            run.ended_at = time.perf_counter()
            run.cpu_s = time.process_time() - cpu_before_s

    async def _closed_loop(self, run: StageRun, prompts: Iterator[Prompt]) -> None:
        """Each client sends its next request when the last one is answered."""

        async def client() -> None:
            while self._is_wanted(run, time.perf_counter()):
                await self._one(run, next(prompts), time.perf_counter())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(run.stage.concurrency or 1):
                tasks.create_task(client())

    async def _open_loop(self, run: StageRun, prompts: Iterator[Prompt]) -> None:
        """Requests come when they are due, however slow the answers are."""
        stage = run.stage
        assert stage.rate is not None
        gate = asyncio.Semaphore(stage.concurrency) if stage.concurrency else None

        async def one(prompt: Prompt, due_at: float) -> None:
            if gate is None:
                await self._one(run, prompt, due_at)
                return
            async with gate:
                await self._one(run, prompt, due_at)

        times_s = arrival_times_s(stage.rate, stage.burstiness, random.Random(self._seed))
        async with asyncio.TaskGroup() as tasks:
            for num_due, time_s in enumerate(times_s):
                due_at = run.started_at + time_s
                if num_due == stage.num_requests or not self._is_in_time(run, due_at):
                    break
                await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
                tasks.create_task(one(next(prompts), due_at))

    def _is_wanted(self, run: StageRun, now: float) -> bool:
        return run.num_sent != run.stage.num_requests and self._is_in_time(run, now)

    @staticmethod
    def _is_in_time(run: StageRun, moment: float) -> bool:
        limit_s = run.stage.duration_s
        return limit_s is None or moment - run.started_at < limit_s

    async def _one(self, run: StageRun, prompt: Prompt, due_at: float) -> None:
        run.num_sent += 1
        run.max_running = max(run.max_running, run.num_running)
        run.records.append(await self._sender.send(prompt, due_at))


class LoadProgress:
    """A bar for a person, a line now and then for a file.

    It shows on stderr, so that stdout has the result alone.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    @contextlib.asynccontextmanager
    async def watching(self, run: StageRun) -> AsyncIterator[None]:
        """While the block runs."""
        show = self._bar if self._console.is_terminal else self._lines
        task = asyncio.create_task(show(run))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _bar(self, run: StageRun) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task("", total=1.0)
            while True:
                progress.update(bar, completed=_share(run), description=_described(run))
                await asyncio.sleep(_BAR_EVERY_S)

    async def _lines(self, run: StageRun) -> None:
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            elapsed_s = time.perf_counter() - run.started_at
            self._console.print(f"{elapsed_s:.0f} s: {_described(run)}", soft_wrap=True)


def _share(run: StageRun) -> float:
    """Done: of the requests, or of the time."""
    stage = run.stage
    shares = []
    if stage.num_requests:
        shares.append(len(run.records) / stage.num_requests)
    if stage.duration_s:
        shares.append((time.perf_counter() - run.started_at) / stage.duration_s)
    return min(1.0, max(shares, default=0.0))


def _described(run: StageRun) -> str:
    of_all = f" of {run.stage.num_requests:,}" if run.stage.num_requests else ""
    num_failed = sum(not record.is_ok for record in run.records)
    failed = f", {num_failed:,} failed" if num_failed else ""
    done = f"{len(run.records):,}{of_all} done{failed}, {run.num_running:,} running"
    return f"{run.stage.label}: {done}"
