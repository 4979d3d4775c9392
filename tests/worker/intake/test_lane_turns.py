"""The order in which lanes are served."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.subjects import NUM_LANES
from worker.intake.request_puller import LANE_WEIGHTS, LaneTurns

LEVELS = range(NUM_LANES)
busy_lanes = st.sets(st.sampled_from(LEVELS), min_size=1)


def next_level(turns: LaneTurns, levels: set[int]) -> int:
    (level,) = turns.share(1, levels)
    turns.took(level)
    return level


def test_there_is_a_weight_for_each_lane_and_lower_ones_weigh_more() -> None:
    assert len(LANE_WEIGHTS) == NUM_LANES
    assert sorted(LANE_WEIGHTS, reverse=True) == list(LANE_WEIGHTS)


@given(st.lists(busy_lanes, max_size=60), busy_lanes)
def test_busy_lanes_get_their_weights_whatever_was_before(
    past: list[set[int]], busy: set[int]
) -> None:
    turns = LaneTurns()
    for levels in past:
        next_level(turns, levels)
    total = sum(LANE_WEIGHTS[level] for level in busy)
    taken = [next_level(turns, busy) for _ in range(10 * total)]
    for level in busy:
        assert abs(taken.count(level) - 10 * LANE_WEIGHTS[level]) <= len(busy)


@given(st.lists(busy_lanes, max_size=60))
def test_a_lane_that_stays_busy_is_never_passed_over_for_long(past: list[set[int]]) -> None:
    turns = LaneTurns()
    for levels in past:
        next_level(turns, levels)
    for level in LEVELS:
        waited = 0
        while next_level(turns, set(LEVELS)) != level:
            waited += 1
        assert waited <= 2 * sum(LANE_WEIGHTS) / LANE_WEIGHTS[level]


@given(st.integers(1, 300))
def test_who_was_away_has_saved_nothing_up(num_before: int) -> None:
    turns = LaneTurns()
    for _ in range(num_before):
        next_level(turns, {2})
    taken = [next_level(turns, {0, 2}) for _ in range(27)]
    assert 23 <= taken.count(0) <= 25, "8 of 9, not all"


@given(st.integers(1, 200), busy_lanes, st.lists(busy_lanes, max_size=30))
def test_sharing_many_is_as_taking_one_after_the_other(
    num_requests: int, busy: set[int], past: list[set[int]]
) -> None:
    at_once, singly = LaneTurns(), LaneTurns()
    for levels in past:
        next_level(at_once, levels)
        next_level(singly, levels)
    shares = at_once.share(num_requests, busy)
    assert sum(shares.values()) == num_requests
    taken = [next_level(singly, busy) for _ in range(num_requests)]
    assert shares == {level: taken.count(level) for level in set(taken)}
