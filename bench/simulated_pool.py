"""A pool of workers in simulated time: a queue, workers with slots, and a rule that scales them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.autoscale_traffic import Arrivals
from deploy.scaling.pool_snapshot import PoolSnapshot

Rule = Callable[[PoolSnapshot], int]  # how many workers there should be


@dataclass(frozen=True)
class WorkerModel:
    """Tokens come the slower the more requests run: a step takes base + per_request * running."""

    num_slots: int = 8
    base_s: float = 0.02
    per_request_s: float = 0.0025
    hand_over_s: float = 0.5  # what a hand-over costs a request: prefill again

    def token_s(self, num_running: int) -> float:
        return self.base_s + self.per_request_s * num_running

    @property
    def tokens_per_s(self) -> float:
        """Of a full worker."""
        return self.num_slots / self.token_s(self.num_slots)


@dataclass(eq=False, slots=True)
class SimulatedRequest:
    arrived_at: float
    num_tokens: float
    left: float  # tokens
    run: int = 0  # counts its stays on workers: the end of an earlier one means nothing


@dataclass(eq=False, slots=True)
class SimulatedWorker:
    ready_at: float
    is_gone: bool = False
    running: dict[SimulatedRequest, tuple[float, float]] = field(
        default_factory=dict
    )  # since, rate


@dataclass
class Outcome:
    """What a run cost, and what it was like for the clients."""

    waits_s: list[float] = field(default_factory=list)  # until a worker took it, one a request
    worker_s: float = 0.0  # paid for, starting included
    most_workers: int = 0
    num_up: int = 0  # decisions that changed something
    num_down: int = 0
    num_handed_over: int = 0


class SimulatedPool:
    """Discrete events: arrivals, ends, workers that become ready, looks of the rule."""

    def __init__(
        self, model: WorkerModel, arrivals: Arrivals, start_s: float, rule: Rule, interval_s: float
    ) -> None:
        self._model = model
        self._arrivals = arrivals
        self._start_s = start_s
        self._rule = rule
        self._interval_s = interval_s
        self._now = 0.0
        self._queue: deque[SimulatedRequest] = deque()
        self._workers: list[SimulatedWorker] = []
        self._free: deque[SimulatedWorker] = deque()  # ready, with a slot; in turns
        self._ends: list[tuple[float, int, int, SimulatedRequest, SimulatedWorker]] = []
        self._num_starts = 0  # breaks ties in the heap
        self._num_running = 0
        self._num_finished = 0
        self._finished_tokens = 0.0
        self._made = 0.0  # tokens of stays that are over
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """From no worker at all until the last request is finished."""
        times, tokens = self._arrivals.times, self._arrivals.tokens
        idx, num_requests, look_at = 0, len(times), 0.0
        while self._now < self._arrivals.duration_s or self._num_finished < num_requests:
            arrives_at = times[idx] if idx < num_requests else float("inf")
            ends_at = self._ends[0][0] if self._ends else float("inf")
            if look_at <= arrives_at and look_at <= ends_at:
                self._now = look_at
                look_at += self._interval_s
                self._look()
            elif arrives_at <= ends_at:
                self._now = arrives_at
                self._queue.append(SimulatedRequest(arrives_at, tokens[idx], tokens[idx]))
                idx += 1
                self._fill()
            else:
                self._end(*heapq.heappop(self._ends))
        return self._outcome

    def _look(self) -> None:
        """Once an interval: workers that are ready by now, then the rule."""
        for worker in self._workers:
            if self._now - self._interval_s < worker.ready_at <= self._now:
                self._free.append(worker)
        self._fill()
        wanted = self._rule(self._snapshot())
        outcome, before = self._outcome, len(self._workers)
        outcome.num_up += wanted > before
        outcome.num_down += wanted < before
        for _ in range(wanted - before):
            self._add_worker(self._now + self._start_s)
        for worker in sorted(self._workers, key=self._worth)[: max(0, before - wanted)]:
            self._remove_worker(worker)
        outcome.most_workers = max(outcome.most_workers, len(self._workers))
        outcome.worker_s += len(self._workers) * self._interval_s
        self._fill()

    def _worth(self, worker: SimulatedWorker) -> tuple[bool, int]:
        return worker.ready_at <= self._now, len(worker.running)

    def _snapshot(self) -> PoolSnapshot:
        num_ready = sum(worker.ready_at <= self._now for worker in self._workers)
        underway = sum(
            (self._now - since) * rate
            for worker in self._workers
            for since, rate in worker.running.values()
        )
        return PoolSnapshot(
            at=self._now,
            num_waiting=len(self._queue),
            num_running=self._num_running,
            oldest_wait_s=self._now - self._queue[0].arrived_at if self._queue else 0.0,
            num_arrived=self._num_finished + len(self._queue) + self._num_running,
            num_tokens=int(self._made + underway),
            num_finished=self._num_finished,
            num_finished_tokens=int(self._finished_tokens),
            num_ready=num_ready,
            num_starting=len(self._workers) - num_ready,
            num_others=0,
            max_running=self._model.num_slots,
            start_s=self._start_s,
        )

    def _add_worker(self, ready_at: float) -> None:
        self._workers.append(SimulatedWorker(ready_at))

    def _remove_worker(self, worker: SimulatedWorker) -> None:
        """Its requests go on elsewhere, before all others."""
        worker.is_gone = True
        self._workers.remove(worker)
        self._hand_over(worker)

    def _hand_over(self, worker: SimulatedWorker) -> None:
        for request, (since, rate) in list(worker.running.items()):
            made = (self._now - since) * rate
            self._made += made
            request.left = max(1.0, request.left - made) + self._model.hand_over_s * rate
            request.run += 1
            self._num_running -= 1
            self._outcome.num_handed_over += 1
            self._queue.appendleft(request)
        worker.running.clear()

    def _fill(self) -> None:
        while self._queue and self._free:
            worker = self._free.popleft()
            if worker.is_gone:
                continue
            self._begin(self._queue.popleft(), worker)
            if len(worker.running) < self._model.num_slots:
                self._free.append(worker)

    def _begin(self, request: SimulatedRequest, worker: SimulatedWorker) -> None:
        if request.run == 0:
            self._outcome.waits_s.append(self._now - request.arrived_at)
        rate = 1 / self._model.token_s(len(worker.running) + 1)
        worker.running[request] = (self._now, rate)
        self._num_running += 1
        self._num_starts += 1
        ends_at = self._now + request.left / rate
        heapq.heappush(self._ends, (ends_at, self._num_starts, request.run, request, worker))

    def _end(
        self, at: float, _start: int, run: int, request: SimulatedRequest, worker: SimulatedWorker
    ) -> None:
        if request.run != run:  # it was handed over meanwhile
            return
        self._now = at
        was_full = len(worker.running) == self._model.num_slots
        since, rate = worker.running.pop(request)
        self._made += (at - since) * rate
        self._num_running -= 1
        self._num_finished += 1
        self._finished_tokens += request.num_tokens
        if was_full:
            self._free.append(worker)
        self._fill()
