"""`make chaos`: streams under faults, checked to the letter; exits with 1 when a demand is missed.

python -m bench.chaos --streams 3000 --seed 1
python -m bench.chaos --streams 100 --faults worker_kill,broker_kill
python -m bench.chaos --servers 3              a cluster, and the faults that only one has
python -m bench.chaos --move                   the service moves to other streams meanwhile
python -m bench.chaos --clients 160 --slots 8  of ten requests nine wait in the queue
python -m bench.chaos --control fencing       a safeguard is off: violations are expected
python -m bench.chaos --append ledger.json    adds its numbers to those of earlier runs
python -m bench.chaos --report ledger.json    prints the sums, runs nothing
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import uvloop

from bench.chaos.faults import FAULTS, faults_of
from bench.chaos.flock import FlockPlan
from bench.chaos.ledger import Ledger
from bench.chaos.report import missed_demands, table
from bench.chaos.suite import control_plan, run_suite
from bench.chaos.suite_plan import SuitePlan
from shared.errors import ConfigError
from shared.telemetry.log import setup_logging


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
    move: Annotated[bool, cyclopts.Parameter(help="The service moves meanwhile.")] = False,
    servers: Annotated[Literal[1, 3], cyclopts.Parameter(help="nats-servers.")] = 1,
    workers: int = 2,
    decode_workers: Annotated[int, cyclopts.Parameter(help="Of these: the rest prefills.")] = 0,
    kv_transfer: Annotated[bool, cyclopts.Parameter(help="They meet over TCP.")] = False,
    supervised: Annotated[bool, cyclopts.Parameter(help="Supervisors announce deaths.")] = True,
    slots: Annotated[int, cyclopts.Parameter(help="Requests that a worker runs at a time.")] = 128,
    ack_wait_s: float = 4.0,
    append: Path | None = None,
    report: Path | None = None,
    folder: Annotated[Path | None, cyclopts.Parameter(help="Keep logs and store here.")] = None,
) -> None:
    """Disturb streams by faults and check each of them against its undisturbed run."""
    if report is not None:
        finish(Ledger.load(report), 0)
    plan = SuitePlan(
        chosen_faults(faults, leave_out, servers),
        seed,
        streams,
        clients,
        cases,
        max_tokens,
        has_move=move,
        flock=FlockPlan(
            num_servers=servers,
            num_workers=workers,
            num_decode_workers=decode_workers,
            has_transfer=kv_transfer,
            max_running=slots,
            ack_wait_s=ack_wait_s,
            announces_deaths=supervised,
        ),
        command=shlex.join(["python", "-m", "bench.chaos", *sys.argv[1:]]),
    )
    if control is not None:
        if servers != 1:
            raise ConfigError(f"--control {control} needs --servers 1, not {servers}")
        plan = control_plan(plan, control)
    setup_logging("chaos", "warning")
    with ExitStack() as exits:
        root = folder or Path(exits.enter_context(tempfile.TemporaryDirectory()))
        ledger = uvloop.run(run_suite(root, plan, lambda sentence: print(sentence, flush=True)))
    if append is not None:
        total = Ledger.load(append)
        total.add(ledger)
        total.save(append)
    finish(ledger, streams, has_moved=move)


def chosen_faults(faults: str, leave_out: str, num_servers: int) -> list[str]:
    """Raises ConfigError for a name that is none, or that so many servers do not have."""
    known = faults_of(num_servers)
    if faults == "all":
        unwanted = list(filter(None, leave_out.split(",")))
        check_names("--leave-out", unwanted, FAULTS)
        return [name for name in known if name not in unwanted]
    wanted = faults.split(",")
    check_names(f"--faults with --servers {num_servers}", wanted, known)
    return wanted


def check_names(flag: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag} has {name!r}; there are {', '.join(known)}")


def finish(ledger: Ledger, num_streams: int, *, has_moved: bool = False) -> None:
    """Print the table; exit with 1 when a demand is missed."""
    print(table(ledger))
    missed = missed_demands(ledger, num_streams, has_moved=has_moved)
    for sentence in missed:
        print(f"MISSED: {sentence}")
    raise SystemExit(1 if missed else 0)


def run(argv: Sequence[str]) -> None:
    """A wrong value ends the program with one sentence and its status, and disturbs nothing."""
    app = cyclopts.App()
    app.default(main)
    try:
        app(argv)
    except ConfigError as exc:
        sys.stderr.write(f"bench.chaos: {exc}\n")
        raise SystemExit(exc.exit_status) from exc


if __name__ == "__main__":
    run(sys.argv[1:])
