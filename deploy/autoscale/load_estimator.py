"""What the traffic asks for, and what a worker is worth, learned from successive snapshots."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploy.autoscale.pool_snapshot import PoolSnapshot

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
        """Of workers that were ready all the time."""
        worker_s = now.num_ready * elapsed_s
        num_tokens = now.num_tokens - last.num_tokens
        self._rate.add(num_tokens, worker_s, elapsed_s, _RATE_S)
        self._best_rate = max(self._best_rate, self._rate.value)
        if now.num_waiting and last.num_waiting and now.num_running and num_tokens:
            self._full_rate.add(num_tokens, worker_s, elapsed_s, _FULL_S)
            self._full_slots.add(now.num_running * elapsed_s, worker_s, elapsed_s, _FULL_S)
