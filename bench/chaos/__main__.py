"""`make chaos`: streams under faults, checked to the letter; exits with 1 when a demand is missed.

python -m bench.chaos --streams 3000 --seed 1
python -m bench.chaos --streams 100 --faults worker_kill,broker_kill
python -m bench.chaos --control fencing       a safeguard is off: violations are expected
python -m bench.chaos --append ledger.json    adds its numbers to those of earlier runs
python -m bench.chaos --report ledger.json    prints the sums, runs nothing
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import uvloop

from bench.chaos.faults import FAULTS
from bench.chaos.flock import FlockPlan
from bench.chaos.ledger import Ledger
from bench.chaos.report import missed_demands, table
from bench.chaos.suite import SuitePlan, control_plan, run_suite
from shared.errors import ConfigError
from shared.log import setup_logging


def main(
    *,
    streams: Annotated[int, cyclopts.Parameter(help="Streams to disturb.")] = 300,
    seed: int = 1,
    faults: Annotated[str, cyclopts.Parameter(help="Names, by comma.")] = "all",
    leave_out: Annotated[str, cyclopts.Parameter(help="Names, by comma.")] = "flipped_byte",
    control: Literal["fencing", "resend", "replay"] | None = None,
    max_tokens: int = 800,
    clients: Annotated[int, cyclopts.Parameter(help="Streams at a time.")] = 64,
    cases: Annotated[int, cyclopts.Parameter(help="Different requests.")] = 110,
    workers: int = 2,
    ack_wait_s: float = 4.0,
    append: Path | None = None,
    report: Path | None = None,
    folder: Annotated[Path | None, cyclopts.Parameter(help="Keep logs and store here.")] = None,
) -> None:
    """Disturb streams by faults and check each of them against its undisturbed run."""
    if report is not None:
        finish(Ledger.load(report), 0)
    setup_logging("chaos", "warning")
    plan = SuitePlan(
        chosen_faults(faults, leave_out),
        seed,
        streams,
        clients,
        cases,
        max_tokens,
        flock=FlockPlan(num_workers=workers, ack_wait_s=ack_wait_s),
        command=shlex.join(["python", "-m", "bench.chaos", *sys.argv[1:]]),
    )
    if control is not None:
        plan = control_plan(plan, control)
    with ExitStack() as exits:
        root = folder or Path(exits.enter_context(tempfile.TemporaryDirectory()))
        ledger = uvloop.run(run_suite(root, plan, lambda sentence: print(sentence, flush=True)))
    if append is not None:
        total = Ledger.load(append)
        total.add(ledger)
        total.save(append)
    finish(ledger, streams)


def chosen_faults(faults: str, leave_out: str) -> list[str]:
    """Raises ConfigError for a name that is none."""
    wanted = list(FAULTS) if faults == "all" else faults.split(",")
    unwanted = leave_out.split(",") if faults == "all" else []
    for name in [*wanted, *filter(None, unwanted)]:
        if name not in FAULTS:
            raise ConfigError(f"--faults has {name!r}; there are {', '.join(FAULTS)}")
    return [name for name in wanted if name not in unwanted]


def finish(ledger: Ledger, num_streams: int) -> None:
    """Print the table; exit with 1 when a demand is missed."""
    print(table(ledger))
    missed = missed_demands(ledger, num_streams)
    for sentence in missed:
        print(f"MISSED: {sentence}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    cyclopts.run(main)
