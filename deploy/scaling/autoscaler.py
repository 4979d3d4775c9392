"""Needs in workers, and how many there shall be: quickly up, slowly down, never back and forth."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from deploy.scaling.pool_snapshot import PoolSnapshot

_ROUNDING = 1e-9
_SOME = 0.1  # of a worker: one, however little there is to do
_ARRIVALS_S = 30.0  # how far back each estimate looks
_REQUEST_S = 300.0
_FULL_S = 60.0  # of the time in which workers were full
_RATE_S = 15.0


@dataclass(frozen=True, slots=True)
class Load:
    """Zero stands for what is not known yet."""

    requests_per_s: float  # that arrive
    expected_per_s: float  # that will, when a worker ordered now is ready
    tokens_per_request: float  # prompt and output
    worker_tokens_per_s: float  # that a full worker makes; unless proven, the most seen of one
    worker_slots: float  # requests that a full worker runs at once; unless proven, at most
    is_proven: bool  # workers were seen full

    @property
    def is_known(self) -> bool:
        return self.tokens_per_request > 0 and self.worker_tokens_per_s > 0

    @property
    def request_worker_s(self) -> float:
        """How long a request keeps a whole worker busy."""
        return self.tokens_per_request / self.worker_tokens_per_s if self.is_known else 0.0


class _DecayingRatio:
    """Sum of one thing over the sum of another, where the past counts less and less."""

    def __init__(self) -> None:
        self._above = self._below = 0.0

    def add(self, above: float, below: float, elapsed_s: float, window_s: float) -> None:
        keep = math.exp(-elapsed_s / window_s)
        self._above = self._above * keep + above
        self._below = self._below * keep + below

    @property
    def value(self) -> float:
        return self._above / self._below if self._below > 0 else 0.0


class LoadEstimator:
    """Takes the snapshots in order.

    What a worker can do shows only while requests wait although workers are ready: then all are
    full. Before that the most that was seen of one is a lower bound, good enough to do with fewer.
    """

    def __init__(self) -> None:
        self._last: PoolSnapshot | None = None
        self._arrivals = _DecayingRatio()
        self._earlier_arrivals = _DecayingRatio()
        self._request_tokens = _DecayingRatio()
        self._rate = _DecayingRatio()
        self._full_rate = _DecayingRatio()
        self._full_slots = _DecayingRatio()
        self._best_rate = 0.0

    def update(self, now: PoolSnapshot) -> Load:
        """The load as of this snapshot."""
        last, self._last = self._last, now
        if last is not None and now.at > last.at:
            self._learn(last, now)
        arriving = max(0.0, self._arrivals.value)
        is_proven = self._full_rate.value > 0
        return Load(
            requests_per_s=arriving,
            expected_per_s=arriving + max(0.0, arriving - self._earlier_arrivals.value),
            tokens_per_request=self._request_tokens.value,
            worker_tokens_per_s=max(self._full_rate.value, self._rate.value)
            if is_proven
            else self._best_rate,
            worker_slots=self._full_slots.value if is_proven else max(1, now.max_running),
            is_proven=is_proven,
        )

    def _learn(self, last: PoolSnapshot, now: PoolSnapshot) -> None:
        elapsed_s = now.at - last.at
        num_arrived = now.num_arrived - last.num_arrived
        self._arrivals.add(num_arrived, elapsed_s, elapsed_s, _ARRIVALS_S)
        # The difference of windows that are `start_s` apart is what `start_s` changes.
        window_s = _ARRIVALS_S + now.start_s
        self._earlier_arrivals.add(num_arrived, elapsed_s, elapsed_s, window_s)
        num_finished = now.num_finished - last.num_finished
        num_finished_tokens = now.num_finished_tokens - last.num_finished_tokens
        self._request_tokens.add(num_finished_tokens, num_finished, elapsed_s, _REQUEST_S)
        if now.num_ready and now.num_ready == last.num_ready:
            self._learn_rate(last, now, elapsed_s)

    def _learn_rate(self, last: PoolSnapshot, now: PoolSnapshot, elapsed_s: float) -> None:
        """Learns from workers that were ready all the time."""
        worker_s = now.num_ready * elapsed_s
        num_tokens = now.num_tokens - last.num_tokens
        self._rate.add(num_tokens, worker_s, elapsed_s, _RATE_S)
        self._best_rate = max(self._best_rate, self._rate.value)
        if now.num_waiting and last.num_waiting and now.num_running and num_tokens:
            self._full_rate.add(num_tokens, worker_s, elapsed_s, _FULL_S)
            self._full_slots.add(now.num_running * elapsed_s, worker_s, elapsed_s, _FULL_S)


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
