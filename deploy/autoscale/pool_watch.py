"""Looks at a pool: its consumers, its oldest request, its workers' cards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from deploy.autoscale.pool_snapshot import PoolSnapshot
from deploy.local.service_sides import ServiceSides
from shared.broker.queue_age import oldest_wait_s
from shared.cluster import Cluster
from shared.protocol.role_cards import WorkDone, WorkerCard, WorkerState

_LEAVING = (WorkerState.DRAINING, WorkerState.HUNG)
_ASSUMED_RUNNING = 32  # requests of a worker, until one has told
_HELD = (WorkerState.PAUSED, WorkerState.FROZEN, WorkerState.UPDATING)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A snapshot, and what only concerns who is to be stopped."""

    snapshot: PoolSnapshot
    loads: Mapping[str, int]  # worker -> requests that it has, of those that are ready
    is_paused: bool  # or given other weights: an operator is at work, and nothing else moves


@dataclass(frozen=True, slots=True)
class _Queue:
    """The queue of a pool, on one side."""

    consumers: Sequence[dict[str, Any]]  # what the server says of each
    oldest_wait_s: float


async def _queue(cluster: Cluster, pool: str) -> _Queue:
    js, stream = cluster.js, cluster.subjects.requests_stream
    names = cluster.subjects.consumers(pool)
    infos = await asyncio.gather(*(js.api(f"CONSUMER.INFO.{stream}.{name}") for name in names))
    ages = await asyncio.gather(*(oldest_wait_s(js, stream, info) for info in infos))
    return _Queue(infos, max(ages))


class PoolWatch:
    """Sums up what the consumers and the workers count, on both sides of a service that moves;
    remembers their last counts.
    """

    def __init__(self, sides: ServiceSides, pool: str, max_running: int | None) -> None:
        self._sides = sides
        self._pool = pool
        self._max_running = max_running or _ASSUMED_RUNNING
        self._num_handed_out: int | None = None  # by the queue so far, beside what waits
        self._work: dict[str, WorkDone] | None = None  # by worker
        self._num_arrived = self._num_tokens = self._num_finished = self._num_finished_tokens = 0
        self._starting_since: dict[str, float] = {}
        self._start_s = 0.0

    async def look(self, own: Set[str], leaving: Set[str]) -> PoolView:
        """`own` are the ids of workers that were started here, and stay. Raises BrokerError."""
        queues = await asyncio.gather(*(_queue(each, self._pool) for each in self._sides.clusters))
        infos = [info for queue in queues for info in queue.consumers]
        cards = [card for card in await self._sides.worker_cards() if card.pool == self._pool]
        staying = {
            card.worker: card
            for card in cards
            if card.worker not in leaving and card.state not in _LEAVING
        }
        ready = {id_ for id_, card in staying.items() if card.state is not WorkerState.LOADING}
        starting = (set(staying) | own) - ready
        now = time.monotonic()
        self._note_starts(now, starting, ready)
        self._count(infos, cards)
        snapshot = PoolSnapshot(
            at=now,
            num_waiting=sum(info["num_pending"] for info in infos),
            num_running=sum(info["num_ack_pending"] for info in infos),
            oldest_wait_s=max(queue.oldest_wait_s for queue in queues),
            num_arrived=self._num_arrived,
            num_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_finished_tokens=self._num_finished_tokens,
            num_ready=len(ready),
            num_starting=len(starting),
            num_others=len((ready | starting) - own),
            max_running=max((card.max_running for card in cards), default=0) or self._max_running,
            start_s=self._longest_start_s(now),
        )
        return PoolView(
            snapshot,
            {id_: staying[id_].num_running + staying[id_].num_waiting for id_ in ready},
            any(card.state in _HELD for card in cards),
        )

    def _count(self, infos: Iterable[dict[str, Any]], cards: Iterable[WorkerCard]) -> None:
        """Arrivals are deliveries and what waits, without what was delivered once more."""
        before, self._work = self._work, {card.worker: card.work for card in cards}
        for worker, work in self._work.items() if before is not None else ():
            last = before.get(worker, WorkDone()) if before is not None else work
            self._num_tokens += work.num_tokens - last.num_tokens
            self._num_finished += work.num_finished - last.num_finished
            self._num_finished_tokens += work.num_finished_tokens - last.num_finished_tokens
            self._num_arrived -= work.num_redelivered - last.num_redelivered
        handed_out = sum(info["delivered"]["consumer_seq"] + info["num_pending"] for info in infos)
        if self._num_handed_out is not None:  # it falls when a consumer is made again
            self._num_arrived += max(0, handed_out - self._num_handed_out)
        self._num_handed_out = handed_out

    def _note_starts(self, now: float, starting: Set[str], ready: Set[str]) -> None:
        for worker, since in self._starting_since.items():
            if worker in ready:
                self._start_s = now - since
        self._starting_since = {
            worker: self._starting_since.get(worker, now) for worker in starting
        }

    def _longest_start_s(self, now: float) -> float:
        """The last one, or the one under way when that takes longer already."""
        return max([self._start_s, *(now - since for since in self._starting_since.values())])
