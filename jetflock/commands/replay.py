"""`jetflock replay`: runs a request again, or many, and says where the tokens of both runs part."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from jetflock.command_line.output import print_json
from jetflock.replay.comparison import Comparison
from jetflock.replay.journal import Journal
from jetflock.replay.report_page import write_report
from jetflock.replay.series import RerunConfig, Series, seconds_of, share_of, time_of
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import ConfigError, JetflockError

_NAME = "jetflock replay"
_SUMMARY = """\
Run request ID again with its own seed and parameters, as a batch request, and compare the tokens; \
or, with --since, a sample of those that were kept. On a deterministic engine with the same \
weights they are equal. ID has to run still, or to be kept (--keep-requests of the frontends). \
Status 1 when its tokens part, or when some of many could not be run."""


class Parted(JetflockError):
    """The tokens are not the same."""

    exit_status = 1


class NotAllRun(JetflockError):
    """Some of many could not be run again."""

    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(RerunConfig):
    """Flags of `jetflock replay`."""

    choice: int = 0
    """Which of n choices of ID."""
    at: int = 0
    """Begin with so many tokens of the first run of ID."""
    to: int | None = None
    """Compare so many tokens of ID; by default all that the first run has."""
    diff: Annotated[bool, Parameter(negative="")] = False
    """Print the whole texts of ID in one, with what differs between marks."""
    since: str | None = None
    """Many: those that ended within this time, as 90s, 15m, 1h or 2d."""
    sample: str = "100%"
    """Of these a share, drawn by their ids."""
    of: str | None = None
    """Of these the requests of one model."""
    journal: Path | None = None
    """File that notes what was compared, with the texts: with it a run that was ended goes on."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print the comparison as JSON: of ID with both runs, of many the report."""

    def check(self, request_id: str) -> None:
        """Raises ConfigError."""
        self.check_counts(to=self.at + 1)
        if bool(request_id) == (self.since is not None):
            raise ConfigError("give the ID of a request, or --since for many")
        of_many = {"html": None, "journal": None, "of": None, "sample": "100%"}
        of_one = {"choice": 0, "at": 0, "to": None, "diff": False}
        for name, default in (of_many if request_id else of_one).items():
            if getattr(self, name) != default:
                whose = "--since" if request_id else "one ID"
                raise ConfigError(f"--{name} is for {whose}")


async def _one(request_id: str, config: ReplayConfig) -> Comparison:
    async with config.rerunner() as rerunner:
        return await rerunner.compared(request_id, config.choice, at=config.at, to=config.to)


async def _many(config: ReplayConfig, share: float, since_s: float, journal: Journal) -> None:
    async with config.rerunner() as rerunner:
        await rerunner.check_models(config.model)
        series = Series(rerunner, journal, config, share)
        if journal.since is None:
            journal.add_since(max(0, int(time_of(await rerunner.loads()) - since_s)))
        query = journal.query(config.of)
        while not series.is_spent:
            page = await rerunner.page(query)
            await series.compare(series.chosen(page))
            if series.is_spent:
                return
            journal.add_cursor(page["next"], 0)
            query["after"] = page["next"]
            if not page["has_more"]:
                return


@contextlib.contextmanager
def _journal(config: ReplayConfig, share: float) -> Iterator[Journal]:
    """That of the flag, or one that goes when all has been reported."""
    head = {"journal": 1, "of": config.of, "model": config.model, "share": share}
    with contextlib.ExitStack() as exits:
        path = config.journal
        if path is None:
            path = Path(exits.enter_context(tempfile.TemporaryDirectory())) / "journal.jsonl"
        yield exits.enter_context(Journal(path, head))


def _main_of_many(config: ReplayConfig) -> None:
    share, since_s = share_of("sample", config.sample), seconds_of("since", config.since or "")
    with _journal(config, share) as journal:
        asyncio.run(_many(config, share, since_s, journal))
        title = f"Replay on {config.model or 'the same models'}"
        write_report(journal, title, config.html, as_json=config.as_json)
        if num := journal.report.num_failed:
            raise NotAllRun(f"{num} could not be run again")


def main(
    request_id: str = "", /, *, config: Annotated[ReplayConfig, FLAT] = ReplayConfig()
) -> None:
    """Compare."""
    config.check(request_id)
    if not request_id:
        _main_of_many(config)
        return
    comparison = asyncio.run(_one(request_id, config))
    if config.as_json:
        print_json(comparison.facts())
    else:
        sys.stdout.write(f"{comparison.words()}\n")
        if config.diff:
            sys.stdout.write(f"{comparison.diff()}\n")
    if comparison.parts_at is not None:
        raise Parted(f"the runs part at token {comparison.parts_at}")


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
