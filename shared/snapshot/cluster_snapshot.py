"""The state of a running service at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from shared.catalog.model_status import PoolHeartbeats
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import PoolEvent, RoleCard, WorkerCard


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Requests of one model and class."""

    model: str
    job_class: str
    num_waiting: int
    num_taken: int  # delivered to a worker, and not over
    oldest_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All that cards, queues and events say. Of what has died, heartbeats have expired."""

    at: float  # unix seconds
    models: Sequence[ModelCard]  # oldest first, whether they are served or not
    heartbeats: PoolHeartbeats  # which say whether a model is served
    workers: Sequence[WorkerCard]  # by model and start
    tokens_per_s: Mapping[str, float]  # by worker; of those that were seen twice
    step_age_s: Mapping[str, float]  # by worker; of those that have requests to step for
    queues: Sequence[QueueDepth]
    roles: Sequence[RoleCard]  # by role and start
    events: Mapping[int, PoolEvent]  # by sequence, oldest first
    num_dead: int  # requests that are kept after their crashes

    def of_model(self, name: str) -> Self:
        """The same with no workers and no queues but those of this model."""
        return replace(
            self,
            workers=[card for card in self.workers if card.model == name],
            queues=[depth for depth in self.queues if depth.model == name],
        )


def place_of_worker(card: WorkerCard) -> tuple[str, float, str]:
    """The order in which workers are listed."""
    return card.model, card.started_at, card.worker
