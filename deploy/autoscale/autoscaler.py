"""Needs in workers, and how many there shall be: quickly up, slowly down, never back and forth."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from deploy.autoscale.load_estimator import Load, LoadEstimator
from deploy.autoscale.pool_snapshot import PoolSnapshot

_ROUNDING = 1e-9
_SOME = 0.1  # of a worker: one, however little there is to do


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """What is aimed at, and how quickly it may be followed."""

    min_workers: int
    max_workers: int
    target_s: float = 10.0  # time to work off what waits,
    target_starts: float = 0.5  # and so many times `start_s` more
    headroom: float = 1.0  # deviations of the load that are kept free
    tolerance: float = 0.1  # share by which need and number may differ
    idle_s: float = 300.0  # without a request before the last worker goes
    down_window_s: float = 60.0  # the greatest need in it counts for going down,
    down_starts: float = 1.0  # and in so many times `start_s` more
    up_factor: float = 2.0  # at most so many times more within `up_period_s`, or
    up_step: int = 4  # so many more
    up_period_s: float = 15.0
    down_factor: float = 0.5  # at least this share is left after `down_period_s`
    down_period_s: float = 60.0


class Need(NamedTuple):
    """Workers that are needed, not rounded, and why."""

    num_workers: float
    reason: str


def needed_workers(policy: ScalePolicy, load: Load, seen: PoolSnapshot) -> Need:
    """What the pool needs, whatever its bounds and its past.

    A worker that is ordered now helps after `start_s`. So the load is the one expected by then, and
    what waits may take longer the longer that is: aiming at less would order workers for a backlog
    that is gone before they come.
    """
    by_requests = Need(seen.num_requests / load.worker_slots, "requests")
    needs = [Need(_SOME if seen.num_requests else 0.0, "requests")]
    if load.is_proven:
        needs += [
            _by_load(policy, load, seen),
            Need(seen.num_running / load.worker_slots, "running requests"),
        ]
    elif load.is_known:  # good enough to do with fewer, not to ask for more
        kept = min(seen.num_workers, _by_load(policy, load, seen).num_workers)
        needs += [by_requests, Need(kept, "load")]
    else:
        busy = min(seen.num_workers, seen.num_requests) * (1 - policy.tolerance)  # whole ones
        needs += [by_requests, Need(busy, "load unknown")]
    if seen.oldest_wait_s > policy.target_s + seen.start_s and not seen.num_starting:
        # What tokens do not tell: contexts that fill the KV cache, workers that hang.
        more = max(1.0, 2 * policy.tolerance * seen.num_workers)
        needs.append(Need(seen.num_workers + more, "oldest request"))
    return max(needs, key=lambda need: need.num_workers)


def _by_load(policy: ScalePolicy, load: Load, seen: PoolSnapshot) -> Need:
    """The expected load, and beside it room for its variance, or for what waits already.

    Square-root staffing: the load, counted in slots, varies by its root, so that large pools need
    a smaller share of room. What waits takes a worker a request at most.
    """
    offered = load.expected_per_s * load.request_worker_s
    headroom = policy.headroom * math.sqrt(offered / load.worker_slots)
    horizon_s = policy.target_s + policy.target_starts * seen.start_s
    catch_up = seen.num_waiting * min(1.0, load.request_worker_s / horizon_s)
    if catch_up > headroom:
        return Need(offered + catch_up, "backlog")
    return Need(offered + headroom, "load")


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers there should be, others' included, and what it was derived from."""

    num_workers: int
    need: Need
    load: Load


class _Moment(NamedTuple):
    at: float
    need: float
    num_workers: int  # that there were


class Autoscaler:
    """Holds what its estimates and windows need of the past; no I/O, no clock of its own.

    Workers that start count like ready ones: nothing is ordered twice.
    """

    def __init__(self, policy: ScalePolicy) -> None:
        self._policy = policy
        self._estimator = LoadEstimator()
        self._moments: deque[_Moment] = deque()  # one a snapshot, as far back as any window
        self._used_at = -math.inf  # when there was a request last

    def decide(self, seen: PoolSnapshot) -> Decision:
        """Call it for every snapshot, in order."""
        policy = self._policy
        load = self._estimator.update(seen)
        need = needed_workers(policy, load, seen)
        if not self._moments:  # whoever came before us had reasons for what is there
            self._used_at = seen.at
            self._moments.append(_Moment(seen.at, seen.num_workers, seen.num_workers))
        if seen.num_requests:
            self._used_at = seen.at
        self._moments.append(_Moment(seen.at, need.num_workers, seen.num_workers))
        least = seen.num_others + policy.min_workers
        if seen.at - self._used_at >= policy.idle_s:
            return Decision(least, Need(0.0, "idle"), load)
        most = seen.num_others + policy.max_workers
        return Decision(max(least, min(most, self._wanted(need, seen))), need, load)

    def _wanted(self, need: Need, seen: PoolSnapshot) -> int:
        num_workers, policy = seen.num_workers, self._policy
        down_s = policy.down_window_s + policy.down_starts * seen.start_s
        self._forget_before(seen.at - max(down_s, policy.up_period_s, policy.down_period_s))
        if need.num_workers > num_workers * (1 + policy.tolerance):
            return min(_ceil(need.num_workers), self._most(seen.at))
        # What the tolerance would let grow back at once is not taken away.
        greatest = max(self._since(seen.at - down_s, "need"))
        enough = max(_ceil(greatest / (1 - policy.tolerance)), min(num_workers, 1))
        return max(enough, self._least(seen.at)) if enough < num_workers else num_workers

    def _most(self, at: float) -> int:
        """The step limit upwards, from the fewest workers that there were lately."""
        policy = self._policy
        before = min(self._since(at - policy.up_period_s, "num_workers"))
        return max(_ceil(before * policy.up_factor), int(before) + policy.up_step)

    def _least(self, at: float) -> int:
        before = max(self._since(at - self._policy.down_period_s, "num_workers"))
        return math.floor(before * self._policy.down_factor)

    def _since(self, start: float, field: str) -> list[float]:
        return [getattr(moment, field) for moment in self._moments if moment.at >= start]

    def _forget_before(self, start: float) -> None:
        while self._moments[0].at < start:
            self._moments.popleft()


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
