"""The short form of the chaos suite: a handful of faults with real processes, and its control."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.chaos.flock import FlockPlan
from bench.chaos.report import missed_demands
from bench.chaos.suite import SuitePlan, control_plan, run_suite

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

PLAN = SuitePlan(
    ("worker_kill", "frontend_kill", "detok_kill", "broker_kill", "cut_worker"),
    seed=7,
    num_disturbed=1,
    num_clients=16,
    num_cases=22,  # two of each kind
    max_tokens=300,
    flock=FlockPlan(ack_wait_s=3.0),
)


async def test_streams_are_whole_whatever_dies(tmp_path: Path) -> None:
    """Recovery times are told by `make chaos`: here the machine may be busy."""
    ledger = await run_suite(tmp_path, PLAN)
    assert ledger.violations == {}, ledger.details
    assert ledger.num_disturbed >= PLAN.num_clients
    struck = {name for name, tally in ledger.faults.items() if tally.num_running}
    assert struck == {*PLAN.fault_names, "mixed"}


async def test_with_replay_off_the_suite_reports_violations(tmp_path: Path) -> None:
    """It sees what it is there for; `make chaos ARGS='--control fencing'` is another control.

    A frontend whose connection is half open misses text for good, so that one fault is enough.
    """
    plan = replace(PLAN, num_clients=6, num_cases=6, flock=FlockPlan(ack_wait_s=2.0))
    ledger = await run_suite(tmp_path, control_plan(plan, "replay"))
    assert ledger.violations, "the suite is blind"
    assert missed_demands(ledger)
