"""Looks at a pool: its consumers, its oldest request, its workers' cards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from deploy.scaling.pool_snapshot import PoolSnapshot
from deploy.scaling.service_sides import ServiceSides
from shared.broker.queue_age import oldest_wait_s
from shared.cluster import Cluster
from shared.protocol.role_cards import WorkDone, WorkerCard, WorkerRole, WorkerState

_LEAVING = (WorkerState.DRAINING, WorkerState.HUNG)
_ASSUMED_RUNNING = 32  # requests of a worker, until one has told
_HELD = (WorkerState.PAUSED, WorkerState.FROZEN, WorkerState.UPDATING)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A snapshot for each role, and what only concerns who is to be stopped."""

    snapshots: Mapping[WorkerRole, PoolSnapshot]
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


@dataclass(frozen=True, slots=True)
class PoolLook:
    """The whole pool at one moment."""

    at: float
    num_pending: int  # requests that no worker has
    num_taken: int  # requests that a worker has
    num_new: int  # requests that have arrived since the look before
    oldest_wait_s: float
    done: Mapping[str, WorkDone]  # worker -> its work since the look before
    cards: Mapping[str, WorkerCard]  # worker -> its card
    staying: Set[str]  # of these workers

    @property
    def ready(self) -> Mapping[str, WorkerCard]:
        return {
            id_: self.cards[id_]
            for id_ in self.staying
            if self.cards[id_].state is not WorkerState.LOADING
        }

    @property
    def is_idle(self) -> bool:
        return not (self.num_new or self.num_pending or self.num_taken)

    @property
    def takes_prompts(self) -> bool:
        """Whether a worker is ready that the queue is for: those that decode only stand in."""
        return any(card.role != "decode" for card in self.ready.values())


class PoolShare:
    """What of a pool concerns the workers of one role; of all for `both`.

    Where roles are apart, a request comes to a worker that decodes when a prefill worker releases
    it, and what it costs a role is what the role's workers have done, by the requests that left
    them. Workers of role `both` take prompts, and are counted there.
    """

    def __init__(self, role: WorkerRole, max_running: int) -> None:
        self._role = role
        self._max_running = max_running
        self._num_arrived = self._num_tokens = self._num_finished = self._num_finished_tokens = 0
        self._is_missed = False  # a request has come while nobody of this role was ready
        self._starting_since: dict[str, float] = {}
        self._start_s = 0.0

    def see(self, look: PoolLook, own: Set[str]) -> PoolSnapshot:
        """`own` are the ids of workers of this role that were started here, and stay."""
        ready = {id_ for id_, card in look.ready.items() if self._has(card)}
        starting = ({id_ for id_ in look.staying if self._has(look.cards[id_])} | own) - ready
        self._note_starts(look.at, starting, ready)
        self._count(look)
        if ready or look.is_idle:
            self._is_missed = False
        elif look.num_new:
            self._is_missed = True
        num_waiting, num_running = self._requests(look, [look.cards[id_] for id_ in ready])
        return PoolSnapshot(
            at=look.at,
            num_waiting=num_waiting,
            num_running=num_running,
            oldest_wait_s=look.oldest_wait_s if self._takes_prompts(look) else 0.0,
            num_arrived=self._num_arrived,
            num_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_finished_tokens=self._num_finished_tokens,
            num_ready=len(ready),
            num_starting=len(starting),
            num_others=len((ready | starting) - own),
            max_running=max((card.max_running for card in look.cards.values()), default=0)
            or self._max_running,
            start_s=self._longest_start_s(look.at),
        )

    def _has(self, card: WorkerCard) -> bool:
        return self._role == "both" or (card.role == "decode") == (self._role == "decode")

    def _takes_prompts(self, look: PoolLook) -> bool:
        return self._role != "decode" or not look.takes_prompts

    def _requests(self, look: PoolLook, ready: Sequence[WorkerCard]) -> tuple[int, int]:
        """That wait for workers of this role, and that these have.

        Each role is asked for also by what the other one does in its place, so that none is left
        at zero.
        """
        if self._role == "both":
            return look.num_pending, look.num_taken
        num_held = sum(card.num_running + card.num_waiting for card in ready)
        num_kept = sum(card.num_kept for card in look.ready.values())
        if self._role == "prefill":
            return max(look.num_pending, int(self._is_missed)), max(0, num_held - num_kept)
        return num_kept + (0 if look.takes_prompts else look.num_pending), num_held

    def _count(self, look: PoolLook) -> None:
        others = [work for id_, work in look.done.items() if not self._has(look.cards[id_])]
        for id_, work in look.done.items():
            if self._has(look.cards[id_]):
                self._num_tokens += work.num_tokens
                self._num_finished += work.num_finished
                self._num_finished_tokens += work.num_finished_tokens
                if self._role != "both":
                    self._num_finished += work.num_released
                    self._num_finished_tokens += work.num_tokens - work.num_finished_tokens
        if self._role == "decode":
            self._num_arrived += sum(work.num_released for work in others)
        if self._takes_prompts(look):
            self._num_arrived += look.num_new

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


class PoolWatch:
    """Sums up what the consumers and the workers count, on both sides of a service that moves;
    remembers their last counts.
    """

    def __init__(
        self,
        sides: ServiceSides,
        pool: str,
        max_running: int | None,
        roles: Iterable[WorkerRole] = ("both",),
    ) -> None:
        self._sides = sides
        self._pool = pool
        self._shares = {role: PoolShare(role, max_running or _ASSUMED_RUNNING) for role in roles}
        self._num_handed_out: int | None = None  # by the queue so far, beside what waits
        self._work: dict[str, WorkDone] | None = None  # by worker

    async def look(self, own: Mapping[str, WorkerRole], leaving: Set[str]) -> PoolView:
        """`own` are the ids of workers that were started here, and stay. Raises BrokerError."""
        queues = await asyncio.gather(*(_queue(each, self._pool) for each in self._sides.clusters))
        infos = [info for queue in queues for info in queue.consumers]
        cards = [card for card in await self._sides.worker_cards() if card.pool == self._pool]
        done = self._done(cards)
        look = PoolLook(
            at=time.monotonic(),
            num_pending=sum(info["num_pending"] for info in infos),
            num_taken=sum(info["num_ack_pending"] for info in infos),
            num_new=self._num_new(infos, done.values()),
            oldest_wait_s=max(queue.oldest_wait_s for queue in queues),
            done=done,
            cards={card.worker: card for card in cards},
            staying={
                card.worker
                for card in cards
                if card.worker not in leaving and card.state not in _LEAVING
            },
        )
        return PoolView(
            {
                role: share.see(look, {id_ for id_, each in own.items() if each == role})
                for role, share in self._shares.items()
            },
            {id_: card.num_running + card.num_waiting for id_, card in look.ready.items()},
            any(card.state in _HELD for card in cards),
        )

    def _done(self, cards: Iterable[WorkerCard]) -> dict[str, WorkDone]:
        """What each worker has done since the look before; at the first one nothing is known."""
        before, self._work = self._work, {card.worker: card.work for card in cards}
        if before is None:
            return {}
        return {id_: work.since(before.get(id_, WorkDone())) for id_, work in self._work.items()}

    def _num_new(self, infos: Iterable[dict[str, Any]], done: Iterable[WorkDone]) -> int:
        """Arrivals are deliveries and what waits, without what was delivered once more."""
        handed_out: int = sum(
            info["delivered"]["consumer_seq"] + info["num_pending"] for info in infos
        )
        before, self._num_handed_out = self._num_handed_out, handed_out
        if before is None:
            return 0
        # It falls when a consumer is made again.
        return max(0, handed_out - before) - sum(work.num_redelivered for work in done)
