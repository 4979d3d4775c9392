"""Turns needs into numbers of workers: quickly up, slowly down, never back and forth."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from deploy.autoscale.load_estimator import Load, LoadEstimator
from deploy.autoscale.policy import Need, ScalePolicy, needed_workers
from deploy.autoscale.pool_snapshot import PoolSnapshot

_ROUNDING = 1e-9


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
