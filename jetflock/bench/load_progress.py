"""Shows a stage while it runs: a bar for a person, a line now and then for a file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jetflock.bench.load_runner import StageRun

_BAR_EVERY_S = 0.2
_LINE_EVERY_S = 10.0


class LoadProgress:
    """On stderr, so that stdout has the result alone."""

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
                progress.update(bar, completed=_share(run), description=_told(run))
                await asyncio.sleep(_BAR_EVERY_S)

    async def _lines(self, run: StageRun) -> None:
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            elapsed_s = time.perf_counter() - run.started_at
            self._console.print(f"{elapsed_s:.0f} s: {_told(run)}", soft_wrap=True)


def _share(run: StageRun) -> float:
    """Done: of the requests, or of the time."""
    stage = run.stage
    shares = []
    if stage.num_requests:
        shares.append(len(run.records) / stage.num_requests)
    if stage.duration_s:
        shares.append((time.perf_counter() - run.started_at) / stage.duration_s)
    return min(1.0, max(shares, default=0.0))


def _told(run: StageRun) -> str:
    of_all = f" of {run.stage.num_requests:,}" if run.stage.num_requests else ""
    num_failed = sum(not record.is_ok for record in run.records)
    failed = f", {num_failed:,} failed" if num_failed else ""
    done = f"{len(run.records):,}{of_all} done{failed}, {run.num_running:,} running"
    return f"{run.stage.label}: {done}"
