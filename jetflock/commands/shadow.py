"""`jetflock shadow`: runs a share of a model's requests on another as they end, and compares."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from jetflock.replay.journal import Journal
from jetflock.replay.report_page import write_report
from jetflock.replay.rerunner import Rerunner
from jetflock.replay.series import RerunConfig, Series, share_of, time_of
from shared.cli.program import Program
from shared.cli.shutdown import Shutdown
from shared.config import FLAT
from shared.errors import ConfigError, JetflockError

_NAME = "jetflock shadow"
_SUMMARY = """\
Run a share of the requests of a model again on another one, as they end, and compare both.

Its runs are batch requests of the key's own tenant: no client sees them, and they count for \
nobody else. While requests wait anywhere it begins none, and ends its own to run them again \
later; it leaves out what has become too old by then, and goes on from its journal. Ctrl-C or \
SIGTERM ends it with the report."""

_LOOK_S = 1.0  # at the queues, and for what has ended
_PAGE = 20  # requests: what waits behind the queues grows old


class NoneRun(JetflockError):
    """All have failed."""

    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class ShadowConfig(RerunConfig):
    """Flags of `jetflock shadow`."""

    of: str = ""
    """Model whose requests are run again; the frontends keep them by --keep-requests all."""
    share: str = "5%"
    """Share of its requests, drawn by their ids: all shadows with one share choose the same."""
    journal: Path = Path("shadow.jsonl")
    """File that notes what was compared, with the texts, and how far it has come."""
    max_requests: int = 0
    """End when so many are compared; 0: any number."""
    max_waiting: int = 4
    """Begin no run, and end those that are running, while more requests than this wait for any
    model."""
    max_lag_s: float = 600.0
    """Leave out what ended longer ago than this."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print the report as JSON."""

    def check(self) -> None:
        """Raises ConfigError."""
        self.check_counts()
        for name in ("of", "model"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} names a model")
        if self.of == self.model:
            raise ConfigError(f"--of and --model are both {self.of!r}")
        if self.max_lag_s <= 0:
            raise ConfigError(f"max_lag_s is {self.max_lag_s:g}, must be above 0")


class Gauge:
    """What waits in the queues, looked at once a second at most."""

    def __init__(self, rerunner: Rerunner, max_waiting: int) -> None:
        self._rerunner = rerunner
        self._max_waiting = max_waiting
        self._loads: dict[str, Any] = {}
        self._looked_at = float("-inf")
        self._look = asyncio.Lock()

    async def turn(self) -> None:
        """Returns when little waits. Raises ServiceError."""
        while await self._num_waiting() > self._max_waiting:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(_LOOK_S)

    async def crowded(self, num_ours: int) -> None:
        """Returns when more than that wait, beside ours. Raises ServiceError."""
        while await self._num_waiting() - num_ours <= self._max_waiting:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def _num_waiting(self) -> int:
        return sum(queue["num_waiting"] for queue in (await self.loads())["queues"])

    async def now(self) -> float:
        """Unix seconds by the service's clock. Raises ServiceError."""
        return time_of(await self.loads())

    async def loads(self) -> dict[str, Any]:
        """Raises ServiceError."""
        async with self._look:
            if time.monotonic() - self._looked_at >= _LOOK_S:
                self._loads = await self._rerunner.loads()
                self._looked_at = time.monotonic()
            return self._loads


async def follow(config: ShadowConfig, share: float, journal: Journal) -> None:
    """Until it is cancelled or nothing may begin. Raises ServiceError."""
    async with config.rerunner() as rerunner:
        await rerunner.check_models(config.of, config.model)
        gauge = Gauge(rerunner, config.max_waiting)
        series = Series(rerunner, journal, config, share, gauge)
        if journal.since is None:
            journal.add_since(int(await gauge.now()))
        while True:
            page = await rerunner.page(journal.query(config.of) | {"limit": _PAGE})
            chosen = series.chosen(page)
            oldest = await gauge.now() - config.max_lag_s
            fresh = [each for each in chosen if each["ended"] >= oldest]
            await series.compare(fresh)
            if series.is_spent:
                return
            if page["next"] != journal.cursor:
                journal.add_cursor(page["next"], len(chosen) - len(fresh))
            if not page["has_more"]:
                await asyncio.sleep(_LOOK_S)


async def _until_stopped(config: ShadowConfig, share: float, journal: Journal) -> None:
    """Raises ServiceError."""
    shutdown = Shutdown()
    shutdown.listen()
    following = asyncio.create_task(follow(config, share, journal))
    stopping = asyncio.create_task(shutdown.asked.wait())
    await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not following.done():
        following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


def main(*, config: Annotated[ShadowConfig, FLAT] = ShadowConfig()) -> None:
    """Follow."""
    config.check()
    share = share_of("share", config.share)
    head = {"journal": 1, "of": config.of, "model": config.model, "share": share}
    with Journal(config.journal, head) as journal:
        sys.stderr.write(
            f"{_NAME}: {share:.3g} of {config.of!r} on {config.model!r}, noted in "
            f"{config.journal}; Ctrl-C ends it\n"
        )
        asyncio.run(_until_stopped(config, share, journal))
        title = f"{config.of} and its shadow {config.model}"
        write_report(journal, title, config.html, as_json=config.as_json)
        report = journal.report
        if report.num_failed and not report.num_compared:
            raise NoneRun(f"none of {report.num_failed} could be run again")


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
