"""Reads the state of a running service, over NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from shared.broker.kv_bucket import readable
from shared.catalog.model_catalog import ModelCatalog
from shared.catalog.model_status import PoolHeartbeats
from shared.cluster import Cluster
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import RoleCard, WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth, place_of_worker
from shared.snapshot.queue_depths import queue_depths
from shared.snapshot.recent_events import RecentEvents
from shared.snapshot.step_ages import StepAges
from shared.snapshot.token_rates import TokenRates

_MAX_AGE_S = 0.9  # workers tell every second


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
