"""`make bench-spot`: what a million tokens cost on spot machines, by the autoscaler's policy.

The code that decides is the real one; queue, workers, market and clock are simulated, with fixed
seeds. Each market stands beside the same traffic on on-demand machines. A worker that hears that
its machine is taken hands its requests over at once, as SIGTERM has it do; or it is paused first
(`jetflock admin pause`), and hands over what runs when the notice ends; or, as in a plane that
knows no hand-over, what has not ended by then begins again. To go down with the load costs no plane
more than a hand-over.

Measured are what jetflock adds to a start and to a hand-over (docs/performance.md); assumed are the
time of a machine to boot, and that of a prefill.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cyclopts
import numpy as np

from bench.autoscale_sim import INTERVAL_S, PEAK_LOAD, scaled_by
from bench.autoscale_traffic import Arrivals, diurnal, make_arrivals
from bench.simulated_pool import SimulatedPool, SimulatedRequest, SimulatedWorker, WorkerModel
from deploy.scaling.autoscaler import ScalePolicy

HOUR_S, DAY_S = 3600.0, 86_400.0
MAX_WORKERS = 16
MEAN_TOKENS = (400.0, 4000.0)  # of a request: of a chat, and of one that reasons first
BOOT_S = 60.0  # of a machine: assumed
START_S = 2.68  # `make bench-start`: ready after it, with the demo model
PREFILL_S = 0.5  # of prompt and tokens so far: assumed
GAP_S = 0.08  # `make bench-plane`: the longest gap of a stream whose worker is killed
MODEL = WorkerModel(hand_over_s=PREFILL_S + GAP_S)
# Of the on-demand price, drawn for each day. Google's documentation of Spot VMs has discounts of
# 60% to 91%, and AWS's of spot instances up to 90%.
PRICE_SHARES = (0.09, 0.40)


@dataclass(frozen=True)
class Market:
    """How often machines are taken away, and how."""

    name: str
    notice_s: float
    taken_per_hour: float = 0.0  # of each machine, by itself
    outages_per_hour: float = 0.0  # all machines are taken at once, and there are none,
    outage_s: float = 0.0  # for so long on average


AT_ONCE, PAUSED, AGAIN = "hands over at once", "pauses, then hands over", "begins again"
MARKETS = (
    # AWS's Spot Instance Advisor: over 20% in a month is its last class; two minutes of notice.
    Market("20% a month", 120.0, taken_per_hour=0.2 / (30 * 24)),
    # No published figure: it lies between the other two. Google's 30 s between the two signals.
    Market("10% an hour", 30.0, taken_per_hour=0.1),
    # skypilot-org/spot-traces, preemption/4-node/aws-08-03-2023/us-west-2c: four V100 machines,
    # 5,131 looks every 5 minutes. About 77 times all four were gone, for 847 looks together.
    Market("trace", 120.0, outages_per_hour=77 / (5131 / 12), outage_s=847 / 77 * 300.0),
)


class Outcome(NamedTuple):
    """One run."""

    cost: float  # of all machines, in prices of an on-demand machine for an hour
    num_tokens: float  # that clients got
    latency_s: array[float]  # of each request, as they arrived; nan: it was lost
    num_taken: int  # spot machines
    num_hit: int  # requests whose machine was taken amid them
    num_lost: int
    num_repeated_tokens: float


class SpotPool(SimulatedPool):
    """Starts spot machines where there are any, else on-demand ones, and changes these for spot
    ones later: one is started beside each, and takes its place when it is ready.
    """

    def __init__(self, arrivals: Arrivals, market: Market | None, seed: int, plane: str) -> None:
        """`market` None: all machines are on demand."""
        rule = scaled_by(ScalePolicy(1, MAX_WORKERS))
        super().__init__(MODEL, arrivals, BOOT_S + START_S, rule, INTERVAL_S)
        self._market = market
        self._plane = plane
        self._rng = np.random.default_rng(seed)
        self._outages = self._drawn_outages()
        days = int(arrivals.duration_s // DAY_S) + 2
        self._price_shares = self._rng.uniform(*PRICE_SHARES, days).tolist()
        self._spot: set[SimulatedWorker] = set()
        self._doomed: list[tuple[float, SimulatedWorker]] = []  # until when they run
        self._changes: list[tuple[float, SimulatedWorker]] = []  # when one takes the place of which
        self._latency_s: dict[float, float] = {}
        self._cost = 0.0
        self._num_taken = self._num_hit = 0
        self._num_repeated = 0.0

    def outcome(self) -> Outcome:
        """Of a whole run."""
        self.run()
        latencies = [self._latency_s.get(at, math.nan) for at in self._arrivals.times]
        return Outcome(
            self._cost,
            sum(self._arrivals.tokens),
            array("d", latencies),
            self._num_taken,
            self._num_hit,
            len(self._arrivals.times) - len(self._latency_s),
            self._num_repeated,
        )

    def _drawn_outages(self) -> list[tuple[float, float]]:
        market, outages, at = self._market, [], 0.0
        while market is not None and market.outages_per_hour and at < self._arrivals.duration_s:
            # Between the beginnings; an outage that is not over by then lasts until then.
            at += self._rng.exponential(HOUR_S / market.outages_per_hour)
            outages.append((at, at + self._rng.exponential(market.outage_s)))
        return outages

    @property
    def _has_spot(self) -> bool:
        is_out = any(start <= self._now < end for start, end in self._outages)
        return self._market is not None and not is_out

    def _look(self) -> None:
        self._end_doomed()
        self._take_machines()
        self._change_machines()
        super()._look()
        self._pay()

    def _add_worker(self, ready_at: float) -> None:
        super()._add_worker(ready_at)
        if self._has_spot:
            self._spot.add(self._workers[-1])

    def _take_machines(self) -> None:
        """Each hears of it now, and is gone when its notice is over."""
        if self._market is None:
            return
        odds = self._market.taken_per_hour * self._interval_s / HOUR_S
        for worker in [each for each in self._workers if each in self._spot]:
            if self._has_spot and self._rng.random() >= odds:
                continue
            self._num_taken += 1
            self._num_hit += len(worker.running)
            if self._plane == AT_ONCE:
                self._remove_worker(worker)
            else:  # it takes no more
                worker.is_gone = True
                self._workers.remove(worker)
            self._doomed.append((self._now + self._market.notice_s, worker))

    def _end_doomed(self) -> None:
        for ends_at, worker in self._doomed:
            if ends_at > self._now:
                continue
            running = dict(worker.running)
            self._hand_over(worker)
            if self._plane == AGAIN:
                for request, (since, rate) in running.items():
                    request.left = request.num_tokens
                    self._num_repeated += (self._now - since) * rate
        # Who has handed over is not paid for longer.
        is_paid = [each for each in self._doomed if each[0] > self._now and each[1].running]
        self._doomed = is_paid

    def _change_machines(self) -> None:
        if not self._has_spot:
            self._changes.clear()
            return
        for ready_at, old in self._changes:
            if ready_at <= self._now and old in self._workers:
                super()._add_worker(self._now)
                self._spot.add(self._workers[-1])
                self._remove_worker(old)
        self._changes = [each for each in self._changes if each[0] > self._now]
        changing = {old for _, old in self._changes}
        for worker in self._workers:
            if worker not in self._spot and worker not in changing:
                self._changes.append((self._now + self._start_s, worker))

    def _pay(self) -> None:
        share = self._price_shares[int(self._now // DAY_S)]
        num_spot = sum(worker in self._spot for worker in self._workers)
        num_spot += len(self._doomed) + len(self._changes)
        num_others = len(self._workers) - sum(worker in self._spot for worker in self._workers)
        self._cost += (num_others + share * num_spot) * self._interval_s / HOUR_S

    def _end(
        self, at: float, start: int, run: int, request: SimulatedRequest, worker: SimulatedWorker
    ) -> None:
        if request.run == run:
            self._latency_s[request.arrived_at] = at - request.arrived_at
        super()._end(at, start, run, request, worker)


class Row(NamedTuple):
    """All seeds of one way to run."""

    machines: str
    plane: str
    outcomes: Sequence[Outcome]

    def _latencies(self) -> list[float]:
        """Of all requests the mean, p99 and p99.9."""
        ordered = sorted(latency_s for each in self.outcomes for latency_s in each.latency_s)
        shares = (0.99, 0.999)
        return [statistics.fmean(ordered), *(ordered[int(it * len(ordered))] for it in shares)]

    def cells(self, on_demand: Row, price: float) -> tuple[str, ...]:
        """Of a table. `price`: dollars for an on-demand machine an hour."""
        tokens = sum(each.num_tokens for each in self.outcomes)
        per_million = price * sum(each.cost for each in self.outcomes) / tokens * 1e6
        all_price = price * sum(each.cost for each in on_demand.outcomes) / tokens * 1e6
        repeated = sum(each.num_repeated_tokens for each in self.outcomes) / tokens
        return (
            self.machines,
            self.plane,
            f"{per_million:.2f}",
            f"{per_million / all_price:.2f}",
            str(sum(each.num_taken for each in self.outcomes)),
            str(sum(each.num_hit for each in self.outcomes)),
            str(sum(each.num_lost for each in self.outcomes)),
            f"{repeated:.2%}",
            *(
                f"{ours - base:+.2f} s"
                for ours, base in zip(self._latencies(), on_demand._latencies(), strict=True)
            ),
        )


HEAD = ("machines", "plane", "$ for 1M tokens", "of on demand", "taken", "requests hit", "lost",
        "tokens repeated", "added to mean", "to p99", "to p99.9")  # fmt: skip


def run_all(duration_s: float, seeds: Sequence[int], mean_tokens: float) -> list[Row]:
    """On demand first, then each market and plane, on the same arrivals."""
    peak_per_s = PEAK_LOAD * MAX_WORKERS * MODEL.tokens_per_s / mean_tokens
    traffic = [make_arrivals(diurnal, peak_per_s, mean_tokens, duration_s, seed) for seed in seeds]

    def outcomes(market: Market | None, plane: str) -> list[Outcome]:
        pairs = zip(traffic, seeds, strict=True)
        return [SpotPool(arrivals, market, seed, plane).outcome() for arrivals, seed in pairs]

    rows = [Row("on demand", "", outcomes(None, AT_ONCE))]
    for market in MARKETS:
        planes = (AT_ONCE, PAUSED, AGAIN)
        rows += [Row(market.name, plane, outcomes(market, plane)) for plane in planes]
    return rows


def main(*, price: float = 1.0, days: float = 1.0, seeds: int = 4) -> None:
    """`price`: dollars for an on-demand machine an hour."""
    began = time.perf_counter()
    for mean_tokens in MEAN_TOKENS:
        rows = run_all(days * DAY_S, range(1, seeds + 1), mean_tokens)
        print(f"\n{mean_tokens:.0f} tokens a request on average:\n")
        print("| " + " | ".join(HEAD) + " |")
        print("|" + "---|" * len(HEAD))
        for row in rows:
            print("| " + " | ".join(row.cells(rows[0], price)) + " |", flush=True)
    sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    cyclopts.run(main)
