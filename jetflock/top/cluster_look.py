"""One look at a running service, over NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.admin.control_plane import ControlPlane, QueueDepth
from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.liveness.recent_events import RecentEvents
from shared.liveness.token_rates import TokenRates
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import PoolEvent, RoleCard, WorkerCard


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """All there was at one moment."""

    at: float  # unix seconds
    url: str
    models: Sequence[ModelCard]
    workers: Sequence[WorkerCard]
    tokens_per_s: Mapping[str, float]  # by worker; of those that were seen twice
    step_age_s: Mapping[str, float]  # by worker; of those that have requests to step for
    queues: Sequence[QueueDepth]
    roles: Sequence[RoleCard]
    events: Sequence[PoolEvent]  # oldest first


class ClusterWatch:
    """Looks again and again: what is a rate or an age is known from the second time on."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._plane = ControlPlane(cluster, name)
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._events = RecentEvents(cluster)
        self._rates = TokenRates()
        self._steps: dict[str, tuple[int, float]] = {}  # worker -> step, and since when

    async def look(self) -> ClusterLook:
        """Raises BrokerError."""
        at = time.time()
        models, workers, queues, roles, events = await asyncio.gather(
            self._plane.models(),
            self._plane.workers(),
            self._plane.queues(),
            self._roles.entries(),
            self._events.read(at),
        )
        return ClusterLook(
            at=at,
            url=self._cluster.config.nats_url,
            models=models,
            workers=workers,
            tokens_per_s=self._rates.note(workers),
            step_age_s=self._step_ages(workers),
            queues=queues,
            roles=sorted(readable(RoleCard, roles), key=lambda card: (card.role, card.started_at)),
            events=list(events.values()),
        )

    def _step_ages(self, workers: Iterable[WorkerCard]) -> dict[str, float]:
        now, before, self._steps = time.monotonic(), self._steps, {}
        ages = {}
        for card in workers:
            step, since = before.get(card.worker, (card.step, now))
            if step != card.step or not card.num_running:
                step, since = card.step, now
            self._steps[card.worker] = step, since
            if card.num_running:
                ages[card.worker] = now - since
        return ages
