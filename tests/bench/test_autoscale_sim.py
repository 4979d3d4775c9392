"""The simulation in a short form: the real policy against simulated traffic."""

from __future__ import annotations

import pytest

from bench.autoscale_sim import DEFAULT, MODEL, QUEUE_LENGTH, run_one, scaled_by
from bench.autoscale_traffic import SHAPES, Arrivals
from bench.simulated_pool import SimulatedPool
from deploy.scaling.autoscaler import ScalePolicy


def test_one_request_from_zero_waits_for_a_start_and_no_more() -> None:
    arrivals = Arrivals([100.0], [400.0], 1000.0)
    pool = SimulatedPool(MODEL, arrivals, 60.0, scaled_by(ScalePolicy(0, 4)), 1.0)
    outcome = pool.run()
    assert outcome.waits_s == [pytest.approx(60.0, abs=2.0)]
    assert outcome.most_workers == 1
    assert (outcome.num_up, outcome.num_down) == (1, 1)
    assert outcome.worker_s == pytest.approx(60 + 9 + 300, abs=5), "start, request, idle time"


@pytest.mark.parametrize("traffic", SHAPES)
@pytest.mark.parametrize("start_s", [5.0, 60.0])
def test_no_request_is_left_and_few_wait_long(traffic: str, start_s: float) -> None:
    [row] = run_one(traffic, 8, start_s, [DEFAULT], duration_s=3600.0)
    assert len(row.outcome.waits_s) > 100
    assert row.wait_s(99) < 15 + 1.5 * start_s
    assert row.outcome.worker_s < 0.7 * 8 * 3600
    assert row.outcome.most_workers <= row.ideal_most


def test_it_follows_bursts_closer_than_the_length_of_the_queue_and_costs_less() -> None:
    ours, plain = run_one("bursts", 8, 5.0, [DEFAULT, QUEUE_LENGTH])
    assert ours.wait_s(95) < 0.5 * plain.wait_s(95)
    assert ours.cost < 0.7 * plain.cost


def test_two_hundred_workers() -> None:
    [row] = run_one("diurnal", 200, 5.0, [DEFAULT], duration_s=1200.0)
    assert row.outcome.most_workers > 100
    assert row.wait_s(99) < 15.0
    assert row.cost < 1.6


def test_long_windows_keep_workers() -> None:
    short, default, long = run_one(
        "bursts", 8, 5.0, ["down 15 s + 1 start", DEFAULT, "down 300 s"], duration_s=3600.0
    )
    assert short.cost < default.cost < long.cost
