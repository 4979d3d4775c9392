"""What a chaos run has found, as numbers that add up over runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from bench.chaos.client import ClientRun
from bench.chaos.strike import Strike
from bench.chaos.violation import Violation

_MAX_DETAILS = 60
DAMAGING = "flipped_byte"  # what was stored is gone: an error is all that is promised


class FaultTally(msgspec.Struct):
    """Of one class of faults."""

    num_strikes: int = 0
    num_running: int = 0  # streams that ran when it struck
    num_hit: int = 0  # of which the victim served so many
    recoveries_s: list[float] = []
    outages_s: list[float] = []
    slowest_s: float = 0.0
    slowest: str = ""


class RunInfo(msgspec.Struct, frozen=True):
    """One run of the suite."""

    date: str
    command: str
    seed: int
    seconds: float
    ack_wait_s: float


class Ledger(msgspec.Struct):
    """Sums over runs; `violations` counts by kind, `details` tells the first ones."""

    runs: list[RunInfo] = []
    num_streams: int = 0
    num_disturbed: int = 0
    num_hit: int = 0
    num_resumes: int = 0
    num_refused: int = 0  # 429 and 503: answers, and the client asks again
    num_damaged: dict[str, int] = {}  # ends of streams that a flipped byte may have damaged
    violations: dict[str, int] = {}
    details: list[str] = []
    kinds: dict[str, int] = {}
    faults: dict[str, FaultTally] = {}
    num_generated: int = 0
    num_delivered: int = 0

    def tally(self, name: str) -> FaultTally:
        return self.faults.setdefault(name, FaultTally())

    def note_run(self, run: ClientRun, found: list[Violation]) -> None:
        """A stream has ended, well or not."""
        self.num_streams += 1
        self.num_disturbed += bool(run.strikes)
        self.num_hit += any(run.number in strike.hits for strike in run.strikes)
        self.num_resumes += run.num_resumes
        self.num_refused += run.num_refusals
        self.num_delivered += run.transcript.num_tokens
        self.kinds[run.case.kind] = self.kinds.get(run.case.kind, 0) + 1
        for violation in found[:1]:
            self.note_violation(violation, f"{run.case.kind} {_story(run)}")

    def note_recovery(self, run: ClientRun, strike: Strike, recovery_s: float) -> None:
        """A stream that the victim served moves again."""
        tally = self.tally(strike.name)
        tally.recoveries_s.append(round(recovery_s, 3))
        if recovery_s > tally.slowest_s:
            tally.slowest_s = round(recovery_s, 3)
            slow = ", slow client" if run.case.is_slow else ""
            tally.slowest = f"{run.case.kind}{slow} {_story(run)}"

    def note_damaged(self, run: ClientRun, found: list[Violation]) -> None:
        """A stream that a flipped byte may have damaged has ended."""
        end = found[0].kind.value if found else "whole"
        self.num_damaged[end] = self.num_damaged.get(end, 0) + 1

    def note_violation(self, violation: Violation, where: str) -> None:
        kind = violation.kind.value
        self.violations[kind] = self.violations.get(kind, 0) + 1
        if len(self.details) < _MAX_DETAILS:
            self.details.append(f"{violation} [{where}]")

    def add(self, other: Ledger) -> None:
        """The sums of both."""
        for name in (
            "num_streams", "num_disturbed", "num_hit", "num_resumes", "num_refused",
            "num_generated", "num_delivered",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.runs += other.runs
        self.details += other.details
        for mine, theirs in (
            (self.violations, other.violations),
            (self.kinds, other.kinds),
            (self.num_damaged, other.num_damaged),
        ):
            mine.update(Counter(mine) + Counter(theirs))
        for name, theirs_tally in other.faults.items():
            tally = self.tally(name)
            tally.num_strikes += theirs_tally.num_strikes
            tally.num_running += theirs_tally.num_running
            tally.num_hit += theirs_tally.num_hit
            tally.recoveries_s += theirs_tally.recoveries_s
            tally.outages_s += theirs_tally.outages_s
            if theirs_tally.slowest_s > tally.slowest_s:
                tally.slowest_s, tally.slowest = theirs_tally.slowest_s, theirs_tally.slowest

    @classmethod
    def load(cls, path: Path) -> Ledger:
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def _story(run: ClientRun) -> str:
    """What helps to find it in the logs."""
    moments = [(strike.at, strike.name) for strike in run.strikes] + run.cuts
    story = "; ".join(f"{at - run.started_at:.2f} s {what}" for at, what in sorted(moments))
    return f"{run.transcript.rid}: {story or 'no fault'}"
