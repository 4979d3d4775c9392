"""A run of the suite from its parameters: for the command, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.chaos.cases import CaseMaker, CaseTokens
from bench.chaos.chaos_run import ChaosRun
from bench.chaos.flock import Flock
from bench.chaos.full_disk import small_volume
from bench.chaos.ledger import Ledger
from bench.chaos.suite_plan import SuitePlan
from deploy.local.serve_config import demo_model

_VOLUME_MIB = 1024


class Control(NamedTuple):
    """What shows that a safeguard is off."""

    fault_names: Sequence[str]
    kinds: Sequence[str] = ()
    max_tokens: int | None = None
    hooks: tuple[str, ...] = ()  # beside the one that switches it off


# What a woken worker writes does harm only where it comes before what its successor writes, and is
# seen only where the two go on differently.
CONTROLS: dict[str, Control] = {
    "fencing": Control(("worker_stop",), kinds=("divergent",), max_tokens=4000, hooks=("late",)),
    "resend": Control(("broker_kill", "cut_worker"), hooks=("lossy",)),
    "replay": Control(("half_open_frontend",)),
}


def control_plan(plan: SuitePlan, safeguard: str) -> SuitePlan:
    """The same with a safeguard switched off by a hook of `role.py`: it must find violations."""
    control = CONTROLS[safeguard]
    flock = replace(plan.flock, hooks=(*plan.flock.hooks, *control.hooks, safeguard))
    return replace(
        plan,
        fault_names=control.fault_names,
        kinds=control.kinds,
        max_tokens=control.max_tokens or plan.max_tokens,
        flock=flock,
        stream_timeout_s=12.0,
    )


async def run_suite(folder: Path, plan: SuitePlan, say: Callable[[str], None] = print) -> Ledger:
    """Logs and the broker's store are left in the folder."""
    with ExitStack() as exits:
        store = folder / "volume"
        if "disk_full" in plan.fault_names:
            exits.enter_context(small_volume(store, _VOLUME_MIB))
        tokens = CaseTokens.read(Path(demo_model()) / "tokenizer.json")
        maker = CaseMaker(plan.seed, tokens, plan.max_tokens)
        cases = maker.make(plan.num_cases, plan.kinds)
        async with Flock(folder, store / "nats", plan.flock) as flock:
            run = ChaosRun(flock, cases, plan, say)
            return await run.run()
