"""The real roles under simulated faults: no schedule breaks an invariant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import run_seed, run_seeds

pytestmark = pytest.mark.slow

_BATCH = 50  # `make test-deep` runs 100,000
_MAX_TO_FIND = 300  # schedules, in which a missing safeguard must show
# Where to begin to look: from seed 0 on it takes longer, and finds no less.
_FIRST_SEEDS = {
    "the fold ignores epochs": 412,
    "claims without compare-and-set": 67,
    "nothing is resent": 405,
    "a fenced finish is acknowledged": 1100,
    "a nak without a stored release": 127,
    "a lease outlives its time": 780,
    "a lease renewed too late": 780,
}
# They show after hundreds of schedules.
_LATE = (
    "a fenced finish is acknowledged",
    "a resumed run does not read the log",
    "nothing is resent",
)


@pytest.mark.parametrize("first", [0, pytest.param(_BATCH, marks=pytest.mark.nightly)])
def test_no_schedule_breaks_an_invariant(first: int) -> None:
    for verdict in run_seeds(range(first, first + _BATCH)):
        assert verdict.is_good, run_seed(verdict.seed, trace=True).report()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] if n in _LATE else []) for n in MUTATIONS],
)
def test_a_missing_safeguard_is_noticed(name: str) -> None:
    first = _FIRST_SEEDS.get(name, 0)
    with mutated(name):
        verdicts = run_seeds(range(first, first + _MAX_TO_FIND))
        is_noticed = any(not verdict.is_good for verdict in verdicts)
    assert is_noticed, f"{_MAX_TO_FIND} schedules did not notice: {name}"


def test_a_seed_is_one_schedule_whatever_the_process() -> None:
    """Neither addresses in memory nor the order of hashes decide anything."""
    seeds = range(8)
    code = (
        "from tests.simulation.simulation import run_seed\n"
        f"for seed in {seeds}: print('\\n'.join(run_seed(seed, trace=True).trace))"
    )
    theirs = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    ours = [line for seed in seeds for line in run_seed(seed, trace=True).trace]
    assert len(ours) > 100
    assert ours == theirs
