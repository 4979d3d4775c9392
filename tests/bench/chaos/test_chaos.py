"""The short form of the chaos suite: a handful of faults with real processes, and its control."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bench.chaos.flock import FlockPlan
from bench.chaos.ledger import Ledger
from bench.chaos.report import missed_demands
from bench.chaos.suite import control_plan, run_suite
from bench.chaos.suite_plan import SuitePlan
from tests.forked_program import call_forked

TIMEOUT_S = 380.0

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
    num_clients=8,
    num_cases=11,  # one of each kind
    max_tokens=100,
    num_mixed=0,
    settle_s=(0.0, 0.5),
    flock=FlockPlan(ack_wait_s=3.0, hooks=("divergent", "paced")),
)
BUSY_PLAN = replace(
    PLAN,
    num_clients=16,
    num_cases=22,
    max_tokens=300,
    num_mixed=2,
    flock=FlockPlan(ack_wait_s=3.0),
)


def run_plan(folder: Path, plan: SuitePlan) -> Ledger:
    """On asyncio's own loop, whose `subprocess` forks: uvloop starts each role anew."""
    return asyncio.run(run_suite(folder, plan))


@pytest.mark.parametrize(
    "plan", [PLAN, pytest.param(BUSY_PLAN, marks=pytest.mark.nightly)], ids=["few", "busy"]
)
def test_streams_are_whole_whatever_dies(tmp_path: Path, plan: SuitePlan) -> None:
    """Recovery times are told by `make chaos`: here the machine may be busy."""
    ledger = call_forked(run_plan, tmp_path, plan, timeout_s=TIMEOUT_S)
    assert ledger.violations == {}, ledger.details
    assert ledger.num_disturbed >= len(plan.fault_names)
    struck = {name for name, tally in ledger.faults.items() if tally.num_running}
    assert struck == {*plan.fault_names, *(["mixed"] if plan.num_mixed else [])}


# Ten clients for each slot: most requests wait while servers are away. An election takes 4 to 9 s,
# so that two faults must do; `make chaos ARGS="--servers 3"` has them all.
CLUSTER_PLAN = replace(
    PLAN,
    fault_names=("leader_kill", "leader_cut"),
    num_clients=20,
    num_cases=5,
    max_tokens=60,
    kinds=("greedy", "sampled", "multi-byte", "chat", "native"),
    flock=FlockPlan(num_servers=3, max_running=1, ack_wait_s=3.0),
)


@pytest.mark.nightly
def test_streams_and_queue_are_whole_whatever_happens_to_a_cluster(tmp_path: Path) -> None:
    ledger = call_forked(run_plan, tmp_path, CLUSTER_PLAN, timeout_s=TIMEOUT_S)
    assert ledger.violations == {}, ledger.details
    assert ledger.num_disturbed >= CLUSTER_PLAN.num_clients
    struck = {name for name, tally in ledger.faults.items() if tally.num_running}
    assert struck == set(CLUSTER_PLAN.fault_names)


@pytest.mark.nightly
def test_with_replay_off_the_suite_reports_violations(tmp_path: Path) -> None:
    """It sees what it is there for; `make chaos ARGS='--control fencing'` is another control.

    A frontend whose connection is half open misses text for good, so that one fault is enough.
    """
    flock = FlockPlan(num_detoks=1, num_workers=1, ack_wait_s=2.0)
    plan = replace(BUSY_PLAN, num_clients=6, num_cases=6, num_mixed=0, flock=flock)
    ledger = call_forked(run_plan, tmp_path, control_plan(plan, "replay"), timeout_s=TIMEOUT_S)
    assert ledger.violations, "the suite is blind"
    assert missed_demands(ledger)
