"""`make bench-autoscale-sim`: the autoscaler's policy on simulated traffic and workers.

The code that decides is the real one; queue, workers and clock are simulated. Compared are the
defaults, the rule of a queue-length scaler as KEDA and the HPA apply it, and variants of the
defaults. Costs are in worker-seconds, those of starting workers included, and stand beside two
others: all workers all the time, and an ideal that knows the future, has a worker for each full or
begun set of slots at any moment, and pays for no start.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import cyclopts
import numpy as np

from bench.autoscale_traffic import SHAPES, Arrivals, make_arrivals
from bench.simulated_pool import Outcome, Rule, SimulatedPool, WorkerModel
from deploy.scaling.autoscaler import Autoscaler, ScalePolicy
from deploy.scaling.pool_snapshot import PoolSnapshot

MEAN_TOKENS = 400.0
DURATION_S = 7200.0
INTERVAL_S = 2.0
STARTS_S = (5.0, 60.0, 300.0)
POOLS = (1, 8, 200)  # greatest numbers of workers
VARIANTS_POOL = 8
PEAK_LOAD = 0.8  # of what these can do
MODEL = WorkerModel()


class LagRule:
    """ceil(waiting and running / slots), every 30 s, behind the HPA's defaults: upwards at most
    doubled or 4 more in 15 s, downwards the greatest of 5 minutes; to zero after 5 idle minutes.
    """

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._polled_at = -math.inf
        self._wanted: deque[tuple[float, int]] = deque()
        self._used_at = 0.0

    def __call__(self, seen: PoolSnapshot) -> int:
        if seen.at - self._polled_at < 30.0 and (seen.num_workers or not seen.num_requests):
            return seen.num_workers
        self._polled_at = seen.at
        wanted = min(self._max_workers, math.ceil(seen.num_requests / MODEL.num_slots))
        if seen.num_requests:
            self._used_at = seen.at
        elif seen.at - self._used_at >= 300.0:
            return 0
        self._wanted.append((seen.at, max(1, wanted)))
        while self._wanted[0][0] < seen.at - 300.0:
            self._wanted.popleft()
        num_workers = seen.num_workers
        if wanted > num_workers * 1.1:
            return min(wanted, max(4 * num_workers, num_workers + 8))
        return min(num_workers, max(one for _, one in self._wanted))


def scaled_by(policy: ScalePolicy) -> Rule:
    scaler = Autoscaler(policy)
    return lambda seen: scaler.decide(seen).num_workers


DEFAULT, QUEUE_LENGTH = "default", "queue length"
VARIANTS: dict[str, dict[str, Any]] = {
    "target 2 s": {"target_s": 2.0},
    "target 60 s": {"target_s": 60.0},
    "target 10 s + 1 start": {"target_starts": 1.0},
    "headroom 0": {"headroom": 0.0},
    "headroom 2": {"headroom": 2.0},
    "down 15 s + 1 start": {"down_window_s": 15.0},
    "down 60 s": {"down_starts": 0.0},
    "down 60 s + 2 starts": {"down_starts": 2.0},
    "down 300 s": {"down_window_s": 300.0, "down_starts": 0.0},
}


def make_rule(name: str, max_workers: int) -> Rule:
    """A fresh one, which knows nothing yet."""
    if name == QUEUE_LENGTH:
        return LagRule(max_workers)
    policy = ScalePolicy(0, max_workers)
    return scaled_by(dataclasses.replace(policy, **VARIANTS.get(name, {})))


class Row(NamedTuple):
    """One run, beside what was possible."""

    traffic: str
    max_workers: int
    start_s: float
    rule: str
    outcome: Outcome
    ideal_worker_s: float
    ideal_most: int

    @property
    def cost(self) -> float:
        """Worker-seconds over the ideal's."""
        return self.outcome.worker_s / self.ideal_worker_s

    def wait_s(self, percentile: float) -> float:
        return float(np.percentile(self.outcome.waits_s, percentile))


def ideal(arrivals: Arrivals) -> tuple[float, int]:
    """Worker-seconds, and the most workers, if each request ran at once in full workers."""
    durations = np.array(arrivals.tokens) * MODEL.token_s(MODEL.num_slots)
    starts = np.array(arrivals.times)
    moments = np.arange(0.0, arrivals.duration_s, 1.0)
    ends = np.sort(starts + durations)
    running = np.searchsorted(starts, moments) - np.searchsorted(ends, moments)
    workers = np.ceil(running / MODEL.num_slots)
    return float(workers.sum()), int(workers.max())


def run_one(
    traffic: str,
    max_workers: int,
    start_s: float,
    rules: Sequence[str],
    seed: int = 1,
    duration_s: float = DURATION_S,
) -> list[Row]:
    """All rules on the same arrivals, each from no worker."""
    peak_per_s = PEAK_LOAD * max_workers * MODEL.tokens_per_s / MEAN_TOKENS
    arrivals = make_arrivals(SHAPES[traffic], peak_per_s, MEAN_TOKENS, duration_s, seed)
    ideal_worker_s, ideal_most = ideal(arrivals)
    return [
        Row(
            traffic,
            max_workers,
            start_s,
            rule,
            SimulatedPool(MODEL, arrivals, start_s, make_rule(rule, max_workers), INTERVAL_S).run(),
            ideal_worker_s,
            ideal_most,
        )
        for rule in rules
    ]


HEAD = ("traffic", "workers", "start", "rule", "cost/ideal", "cost/all", "wait p50", "p95", "p99",
        "most/ideal", "up", "down", "handed over")  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """Of a table."""
    out = row.outcome
    share = out.worker_s / (row.max_workers * DURATION_S)
    return (
        row.traffic,
        f"0..{row.max_workers}",
        f"{row.start_s:.0f} s",
        row.rule,
        f"{row.cost:.2f}",
        f"{share:.2f}",
        *(f"{row.wait_s(percentile):.1f} s" for percentile in (50, 95, 99)),
        f"{out.most_workers / max(1, row.ideal_most):.2f}",
        str(out.num_up),
        str(out.num_down),
        str(out.num_handed_over),
    )


def print_table(pools: Sequence[int], rules: Sequence[str], seed: int) -> None:
    """In Markdown."""
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    for traffic in SHAPES:
        for max_workers in pools:
            for start_s in STARTS_S:
                for row in run_one(traffic, max_workers, start_s, rules, seed):
                    print("| " + " | ".join(cells(row)) + " |", flush=True)
    print()


def main(*, seed: int = 1) -> None:
    """The defaults beside the queue-length rule, then beside variants of themselves."""
    began = time.perf_counter()
    print_table(POOLS, (DEFAULT, QUEUE_LENGTH), seed)
    print_table((VARIANTS_POOL,), (DEFAULT, *VARIANTS), seed)
    sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    cyclopts.run(main)
