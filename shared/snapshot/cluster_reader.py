"""Reads the state of a running service, over NATS."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shared.broker.jetstream import StoredMessage
from shared.broker.kv_bucket import readable
from shared.broker.queue_age import oldest_wait_s
from shared.catalog.model_catalog import ModelCatalog
from shared.catalog.model_status import PoolHeartbeats
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import decode
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import PoolEvent, RoleCard, WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth, place_of_worker
from shared.subjects import JOB_CLASSES, LANES, Lane
from shared.telemetry.log import get_logger

KEPT_S = 330.0  # a timeline of five minutes, and how its first second came about
_MAX_EVENTS = 1000
_MAX_GAP_S = 10.0  # between two cards: what was so long ago says nothing of now
_MAX_AGE_S = 0.9  # workers tell every second

log = get_logger(__name__)


async def queue_depths(cluster: Cluster, cards: Iterable[ModelCard]) -> Sequence[QueueDepth]:
    """How many requests of each of these models wait or run, by class. Raises BrokerError."""
    depths = (_depth(cluster, card, each) for card in cards for each in JOB_CLASSES)
    return await asyncio.gather(*depths)


async def _depth(cluster: Cluster, card: ModelCard, job_class: str) -> QueueDepth:
    lanes = [lane for lane in LANES if lane.job_class == job_class]
    infos = await asyncio.gather(*(_lane_info(cluster, card.pool, lane) for lane in lanes))
    js, stream = cluster.js, cluster.subjects.requests_stream
    ages = await asyncio.gather(*(oldest_wait_s(js, stream, info) for info in infos))
    return QueueDepth(
        card.name,
        job_class,
        sum(int(info["num_pending"]) for info in infos),
        sum(int(info["num_ack_pending"]) for info in infos),
        round(max(ages), 3),
    )


async def _lane_info(cluster: Cluster, pool: str, lane: Lane) -> dict[str, Any]:
    subjects = cluster.subjects
    consumer = subjects.consumer(pool, lane.token)
    return await cluster.js.api(f"CONSUMER.INFO.{subjects.requests_stream}.{consumer}")


class RecentEvents:
    """What happened to the pools in the last minutes.

    Reads on where it has stopped; after a long pause only what is recent."""

    def __init__(self, cluster: Cluster) -> None:
        self._js = cluster.js
        self._stream = cluster.subjects.events_stream
        self._subject = cluster.subjects.event("*")
        self._events: OrderedDict[int, tuple[float, PoolEvent]] = OrderedDict()  # by sequence
        self._next_seq = 1
        self._read_at = 0.0

    async def read(self, now: float) -> Mapping[int, PoolEvent]:
        """The events by their sequence, oldest first; `now` is in unix seconds.

        Raises BrokerError.
        """
        since = now - KEPT_S
        has_paused = self._read_at < since
        start = datetime.datetime.fromtimestamp(since, datetime.UTC) if has_paused else None
        scan = self._js.direct_scan(
            self._stream, self._subject, first_seq=self._next_seq, since=start
        )
        async for message in scan:
            self._next_seq = message.seq + 1
            self._note(message)
        self._read_at = now
        self._forget(since)
        return {seq: event for seq, (_, event) in self._events.items()}

    def _note(self, message: StoredMessage) -> None:
        try:
            event: PoolEvent = decode(PoolEvent, message.data)  # type: ignore[arg-type]
        except ProtocolError as exc:
            log.debug("pool_event_unreadable", error=str(exc))
            return
        self._events[message.seq] = (message.time.timestamp(), event)

    def _forget(self, since: float) -> None:
        while self._events:
            stored_at, _ = next(iter(self._events.values()))
            if stored_at >= since and len(self._events) <= _MAX_EVENTS:
                return
            self._events.popitem(last=False)


class _Count(NamedTuple):
    at: float  # of the worker's own clock
    num_tokens: int
    per_s: float | None  # up to then; None: not known


class TokenRates:
    """How many tokens a second each worker makes, by what its cards count.

    A rate is that between the last two cards of each worker that were seen."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def note(self, cards: Iterable[WorkerCard]) -> Mapping[str, float]:
        """Output tokens a second by worker, of those of whom two cards are known."""
        before, self._counts = self._counts, {}
        for card in cards:
            self._counts[card.worker] = _next_count(before.get(card.worker), card)
        return {
            worker: count.per_s for worker, count in self._counts.items() if count.per_s is not None
        }


def _next_count(last: _Count | None, card: WorkerCard) -> _Count:
    num_tokens = card.work.num_generated
    if last is None:
        return _Count(card.at, num_tokens, None)
    gap_s = card.at - last.at
    if gap_s <= 0:  # the same card again
        return last
    per_s = (num_tokens - last.num_tokens) / gap_s if gap_s <= _MAX_GAP_S else None
    return _Count(card.at, num_tokens, per_s)


class StepAges:
    """Measures for how long each worker has been at the same step, from its second card on."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[int, float]] = {}  # worker -> step, and since when

    def note(self, cards: Iterable[WorkerCard]) -> Mapping[str, float]:
        """Seconds by worker, of those that have requests to step for."""
        now, before, self._steps = time.monotonic(), self._steps, {}
        ages = {}
        for card in cards:
            step, since = before.get(card.worker, (card.step, now))
            if step != card.step or not card.num_running:
                step, since = card.step, now
            self._steps[card.worker] = step, since
            if card.num_running:
                ages[card.worker] = now - since
        return ages


class ClusterReader:
    """NATS is asked once a second, however many ask for a snapshot; and not while nobody does.

    What is a rate or an age is known from the second snapshot on.
    """

    def __init__(self, cluster: Cluster, max_age_s: float = _MAX_AGE_S) -> None:
        self._cluster = cluster
        self._max_age_s = max_age_s
        self._catalog = ModelCatalog(cluster)
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._events = RecentEvents(cluster)
        self._rates = TokenRates()
        self._step_ages = StepAges()
        self._lock = asyncio.Lock()
        self._seen: ClusterSnapshot | None = None
        self._seen_at = float("-inf")  # of the event loop's clock

    async def snapshot(self) -> ClusterSnapshot:
        """The same one for all who ask within its age. Raises BrokerError."""
        now = asyncio.get_running_loop().time
        async with self._lock:
            if self._seen is None or now() - self._seen_at > self._max_age_s:
                self._seen = await self._read()
                self._seen_at = now()
            return self._seen

    async def _read(self) -> ClusterSnapshot:
        at = time.time()
        (models, queues), workers, roles, events, num_dead = await asyncio.gather(
            self._models_and_queues(),
            self._workers.entries(),
            self._roles.entries(),
            self._events.read(at),
            self._num_dead(),
        )
        cards = sorted(readable(WorkerCard, workers), key=place_of_worker)
        return ClusterSnapshot(
            at=at,
            models=models,
            heartbeats=PoolHeartbeats.of(workers, roles),
            workers=cards,
            tokens_per_s=self._rates.note(cards),
            step_age_s=self._step_ages.note(cards),
            queues=queues,
            roles=sorted(readable(RoleCard, roles), key=lambda card: (card.role, card.started_at)),
            events=events,
            num_dead=num_dead,
        )

    async def _models_and_queues(self) -> tuple[Sequence[ModelCard], Sequence[QueueDepth]]:
        cards = await self._catalog.cards()
        return cards, await queue_depths(self._cluster, cards)

    async def _num_dead(self) -> int:
        info = await self._cluster.js.api(f"STREAM.INFO.{self._cluster.subjects.dead_stream}")
        return int(info["state"]["messages"])
