"""What the autoscaler makes of what it sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.scaling.autoscaler import (
    Autoscaler,
    Decision,
    Load,
    LoadEstimator,
    ScalePolicy,
    needed_workers,
)
from deploy.scaling.pool_snapshot import PoolSnapshot

POLICY = ScalePolicy(min_workers=0, max_workers=8)
# A worker makes 100 tokens/s, a request has 50: two requests a second keep one full.
LOAD = Load(
    requests_per_s=2.0,
    expected_per_s=2.0,
    tokens_per_request=50.0,
    worker_tokens_per_s=100.0,
    worker_slots=4.0,
    is_proven=True,
)


def make_seen(**values: float) -> PoolSnapshot:
    nothing = PoolSnapshot(0.0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, max_running=4, start_s=10.0)
    return replace(nothing, **values)  # type: ignore[arg-type]


class Pool:
    """Seconds of a pool that gets what it is decided to have, ready at once."""

    def __init__(self, policy: ScalePolicy = POLICY, num_workers: int = 0) -> None:
        self.scaler = Autoscaler(policy)
        self.seen = make_seen(num_ready=num_workers)

    def second(self, **values: float) -> Decision:
        """Values with a plus are added."""
        self.seen = replace(self.seen, at=self.seen.at + 1.0, **values)  # type: ignore[arg-type]
        decision = self.scaler.decide(self.seen)
        self.seen = replace(self.seen, num_ready=decision.num_workers)
        return decision

    def seconds(self, count: int, **values: float) -> list[int]:
        return [self.second(**values).num_workers for _ in range(count)]


def needed(seen: PoolSnapshot, load: Load = LOAD, policy: ScalePolicy = POLICY) -> float:
    return needed_workers(policy, load, seen).num_workers


def test_the_load_gets_room_for_its_root() -> None:
    seen = make_seen(num_running=4, num_ready=1)
    assert needed(seen) == pytest.approx(1.0 + (1 / 4) ** 0.5)
    fourfold = replace(LOAD, requests_per_s=8.0, expected_per_s=8.0)
    assert needed(seen, fourfold) == pytest.approx(4.0 + 1.0), "double room for four times as much"


def test_what_waits_is_worked_off_in_the_target_and_half_a_start() -> None:
    seen = make_seen(num_waiting=60, num_running=4, num_ready=1)
    assert needed(seen) == pytest.approx(1.0 + 60 * 0.5 / (10 + 5))
    assert needed(replace(seen, start_s=40.0)) == pytest.approx(1.0 + 60 * 0.5 / (10 + 20))


def test_a_request_that_waits_takes_one_worker_at_most() -> None:
    huge = replace(LOAD, tokens_per_request=1e6, expected_per_s=0.0)
    assert needed(make_seen(num_waiting=3, num_running=4, num_ready=1), huge) == 3.0


def test_running_requests_keep_their_slots_when_none_arrives() -> None:
    quiet = replace(LOAD, requests_per_s=0.0, expected_per_s=0.0)
    assert needed(make_seen(num_running=12, num_ready=4), quiet) == 3.0


def test_what_was_never_full_is_no_reason_to_grow_beyond_slots() -> None:
    light = replace(LOAD, worker_tokens_per_s=5.0, is_proven=False)
    assert needed(make_seen(num_running=2, num_ready=3), light) == 3.0, "its 20 workers are a guess"
    proven = replace(light, worker_tokens_per_s=100.0)
    assert needed(make_seen(num_running=2, num_ready=3), proven) < 2.0, "that is no guess"


def test_before_anything_is_known_requests_fill_slots() -> None:
    unknown = Load(0.0, 0.0, 0.0, 0.0, 4.0, is_proven=False)
    assert needed(make_seen(num_waiting=10), unknown) == 2.5


def test_one_that_waits_too_long_is_a_reason_unless_help_is_on_its_way() -> None:
    stuck = make_seen(num_waiting=1, num_running=4, num_ready=2, oldest_wait_s=21.0)
    quiet = replace(LOAD, expected_per_s=0.0)
    assert needed(stuck, quiet) == 3.0
    assert needed(replace(stuck, oldest_wait_s=19.0), quiet) == 1.0
    assert needed(replace(stuck, num_ready=1, num_starting=1), quiet) == 1.0


def test_from_zero_at_once_and_back_after_the_idle_time() -> None:
    pool = Pool(replace(POLICY, idle_s=30.0))
    assert pool.second().num_workers == 0
    assert pool.second(num_waiting=1, num_arrived=1).num_workers == 1
    pool.second(num_waiting=0, num_running=1)
    numbers = pool.seconds(40, num_running=0)
    assert numbers == [1] * 29 + [0] * 11


def test_the_least_number_stays() -> None:
    pool = Pool(replace(POLICY, min_workers=2, idle_s=5.0), num_workers=2)
    assert set(pool.seconds(20)) == {2}


def test_workers_that_start_are_not_ordered_again() -> None:
    pool = Pool()
    assert pool.second(num_waiting=12, num_arrived=12).num_workers == 3
    pool.seen = replace(pool.seen, num_ready=0, num_starting=3)
    assert pool.second().num_workers == 3


def test_steps_up_are_limited() -> None:
    pool = Pool(replace(POLICY, max_workers=200))
    numbers = pool.seconds(40, num_waiting=10_000, num_arrived=10_000)
    assert numbers[0] == 4
    assert numbers[20] == 8, "doubled in a period"
    assert numbers[39] == 16


def test_steps_down_are_limited_and_late() -> None:
    pool = Pool(num_workers=8)
    numbers = pool.seconds(200, num_running=1)
    assert set(numbers[:69]) == {8}, "the window, and the time of a start"
    assert numbers[75] == 4
    assert numbers[-1] == 1


def test_few_requests_do_not_keep_two_workers_that_nobody_knows() -> None:
    pool = Pool(num_workers=2)
    assert pool.seconds(200, num_running=1)[-1] == 1
    pool = Pool(num_workers=2)
    assert pool.seconds(200, num_running=2)[-1] == 2, "each may be as much as one can do"


def test_a_need_that_swings_within_the_tolerance_changes_nothing() -> None:
    pool = Pool(num_workers=2)
    estimates = [
        pool.second(num_running=8 if idx % 2 else 7, num_waiting=0).num_workers
        for idx in range(300)
    ]
    assert set(estimates) == {2}


def test_what_a_worker_can_do_shows_while_it_is_full() -> None:
    estimator = LoadEstimator()
    seen = make_seen(num_ready=1, num_running=1)
    for _ in range(20):  # a light load: one request of 50 tokens every second
        seen = replace(
            seen,
            at=seen.at + 1,
            num_arrived=seen.num_arrived + 1,
            num_tokens=seen.num_tokens + 50,
            num_finished=seen.num_finished + 1,
            num_finished_tokens=seen.num_finished_tokens + 50,
        )
        load = estimator.update(seen)
    assert not load.is_proven
    assert load.worker_tokens_per_s == pytest.approx(50.0)
    assert load.requests_per_s == pytest.approx(1.0)
    assert load.tokens_per_request == pytest.approx(50.0)
    assert load.worker_slots == 4, "as many as it may run"
    for _ in range(20):
        seen = replace(seen, at=seen.at + 1, num_tokens=seen.num_tokens + 200, num_waiting=5)
        seen = replace(seen, num_running=3)
        load = estimator.update(seen)
    assert load.is_proven
    assert load.worker_tokens_per_s == pytest.approx(200.0, rel=0.05)
    assert load.worker_slots == pytest.approx(3.0), "as many as it did run"


def test_a_rising_load_is_expected_to_rise_for_another_start() -> None:
    estimator = LoadEstimator()
    seen = make_seen(start_s=60.0)
    for second in range(600):
        seen = replace(seen, at=seen.at + 1, num_arrived=seen.num_arrived + second)
        load = estimator.update(seen)
    assert load.requests_per_s == pytest.approx(570, rel=0.02)
    assert load.expected_per_s - load.requests_per_s == pytest.approx(60, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 400), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_it_stays_within_its_bounds_whatever_it_sees(
    story: list[tuple[int, int, int, bool]],
) -> None:
    pool = Pool(replace(POLICY, min_workers=1, max_workers=5), num_workers=3)
    for num_waiting, num_running, num_tokens, are_starting in story:
        decision = pool.second(
            num_waiting=num_waiting,
            num_running=num_running,
            num_arrived=pool.seen.num_arrived + num_waiting,
            num_tokens=pool.seen.num_tokens + num_tokens,
        )
        assert 1 <= decision.num_workers <= 5
        if are_starting:
            pool.seen = replace(pool.seen, num_ready=0, num_starting=decision.num_workers)
