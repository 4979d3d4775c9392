"""The table of a ledger, and which demands it misses."""

from __future__ import annotations

from collections.abc import Iterator

from bench.chaos.faults import FAULTS
from bench.chaos.ledger import FaultTally, Ledger

MAX_WASTE = 1.3  # generated / delivered


def percentile(values: list[float], percent: float) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def limit_s(ledger: Ledger, name: str) -> float | None:
    """How soon streams must move again after this fault; None when nothing is promised."""
    fault = FAULTS.get(name)
    if fault is None or fault.limit_s is None:
        return None
    ack_wait_s = max(run.ack_wait_s for run in ledger.runs)
    return fault.limit_s + (ack_wait_s if fault.has_ack_wait else 0.0)


def missed_demands(ledger: Ledger, num_disturbed: int = 0, *, has_moved: bool = False) -> list[str]:
    """Sentences, none when all is well.

    While a service moves, workers load their model for the other side: how soon a stream goes on
    after the death of another one is not promised then.
    """
    missed = [f"{count} streams {kind}" for kind, count in sorted(ledger.violations.items())]
    if ledger.num_disturbed < num_disturbed:
        missed.append(f"{ledger.num_disturbed} streams disturbed, not {num_disturbed}")
    for name, tally in sorted(ledger.faults.items()):
        limit = limit_s(ledger, name)
        if limit is not None and tally.recoveries_s and not has_moved:
            p99 = percentile(tally.recoveries_s, 99)
            if p99 > limit:
                missed.append(f"recovery from {name}: p99 {p99:.2f} s, allowed {limit:g} s")
    if ledger.num_delivered and waste(ledger) > MAX_WASTE:
        missed.append(f"{waste(ledger):.2f} tokens generated for each delivered")
    return missed


def waste(ledger: Ledger) -> float:
    return ledger.num_generated / max(1, ledger.num_delivered)


def table(ledger: Ledger) -> str:
    """Markdown."""
    return "\n".join(_lines(ledger)) + "\n"


def _lines(ledger: Ledger) -> Iterator[str]:
    seconds = sum(run.seconds for run in ledger.runs)
    seeds = ", ".join(str(run.seed) for run in ledger.runs)
    found = ledger.violations
    yield f"{ledger.num_disturbed} streams disturbed, of {ledger.num_streams}; seeds {seeds}; "
    yield f"{seconds / 60:.0f} minutes."
    yield ""
    yield "| | |"
    yield "|---|---|"
    for kind in ("lost", "duplicated", "gap", "wrong", "failed"):
        yield f"| {kind} | {found.get(kind, 0)} |"
    yield f"| served by the victim itself | {ledger.num_hit} |"
    yield f"| resumed by their clients | {ledger.num_resumes} |"
    yield f"| refused (429, 503) and asked again | {ledger.num_refused} |"
    yield f"| generated / delivered tokens | {waste(ledger):.3f} |"
    for end, count in sorted(ledger.num_damaged.items()):
        yield f"| ran while a byte flipped: {end} | {count} |"
    yield ""
    yield "| fault | times | streams hit | recovery p50 | p99 | allowed |"
    yield "|---|---|---|---|---|---|"
    for name in [*FAULTS, "mixed"]:
        if name in ledger.faults:
            yield _row(ledger, name, ledger.faults[name])
    yield from _slowest(ledger)
    if ledger.details:
        yield ""
        yield from (f"- {detail}" for detail in ledger.details)


def _slowest(ledger: Ledger) -> Iterator[str]:
    """Where a limit was missed: by whom most."""
    for name, tally in ledger.faults.items():
        limit = limit_s(ledger, name)
        if limit is not None and tally.slowest_s > limit:
            yield f"- slowest after {name}: {tally.slowest_s} s, {tally.slowest}"


def _row(ledger: Ledger, name: str, tally: FaultTally) -> str:
    limit = limit_s(ledger, name)
    p50 = p99 = "-"
    if tally.recoveries_s:
        p50 = f"{percentile(tally.recoveries_s, 50):.2f} s"
        p99 = f"{percentile(tally.recoveries_s, 99):.2f} s"
    allowed = "-" if limit is None else f"{limit:g} s"
    hit = tally.num_hit or tally.num_running
    return f"| {name} | {tally.num_strikes} | {hit} | {p50} | {p99} | {allowed} |"
