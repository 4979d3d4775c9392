"""Spot machines in a short simulation: nothing is lost, and what is repeated is counted."""

from __future__ import annotations

import dataclasses

import pytest

from bench.autoscale_traffic import Arrivals
from bench.spot import AGAIN, AT_ONCE, MARKETS, MODEL, PAUSED, Market, SpotPool, run_all

LONG = Arrivals([100.0 + idx for idx in range(8)], [4000.0] * 8, 1200.0)
ROUGH = Market("rough", 30.0, outages_per_hour=20.0, outage_s=60.0)


def test_nothing_is_lost_and_spot_is_cheaper() -> None:
    on_demand, *others = run_all(3000.0, (1,), 400.0)
    assert len(others) == 3 * len(MARKETS)
    [base] = on_demand.outcomes
    assert (base.num_taken, base.num_hit) == (0, 0)
    for row in others:
        [outcome] = row.outcomes
        assert outcome.num_lost == 0
        assert len(outcome.latency_s) == len(base.latency_s)
        assert outcome.cost < 0.6 * base.cost


def test_a_hand_over_repeats_no_token_and_costs_its_time() -> None:
    ours, later = (SpotPool(LONG, ROUGH, 1, plane).outcome() for plane in (AT_ONCE, PAUSED))
    theirs = SpotPool(LONG, ROUGH, 1, AGAIN).outcome()
    assert ours.num_hit > 0
    assert ours.num_repeated_tokens == later.num_repeated_tokens == 0
    assert theirs.num_repeated_tokens > 0
    assert max(theirs.latency_s) > max(ours.latency_s)
    assert max(theirs.latency_s) > max(later.latency_s)
    assert ours.num_lost == later.num_lost == theirs.num_lost == 0
    alone = 4000 * MODEL.token_s(8)
    assert max(ours.latency_s) > alone


def test_seeds_say_it_all() -> None:
    first, again = (SpotPool(LONG, ROUGH, 3, AT_ONCE).outcome() for _ in range(2))
    assert first == again


def test_without_machines_of_its_kind_a_pool_pays_the_whole_price() -> None:
    gone = dataclasses.replace(ROUGH, outages_per_hour=1e6, outage_s=1e9)
    on_demand = SpotPool(LONG, None, 1, AT_ONCE).outcome()
    assert SpotPool(LONG, gone, 1, AT_ONCE).outcome().cost == pytest.approx(
        on_demand.cost, rel=0.05
    )
