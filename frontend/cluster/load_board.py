"""The workers' cards and the queue's depth, as of a second ago at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from shared.admin.control_plane import ControlPlane, QueueDepth
from shared.cluster import Cluster
from shared.errors import BrokerError, ServiceUnavailable
from shared.protocol.role_cards import WorkerCard

_MAX_AGE_S = 0.9  # workers tell every second


@dataclass(frozen=True, slots=True)
class Loads:
    """All there is at one moment."""

    at: float  # unix seconds
    workers: Sequence[WorkerCard]
    queues: Sequence[QueueDepth]

    def of_model(self, name: str) -> Loads:
        return Loads(
            self.at,
            [card for card in self.workers if card.model == name],
            [queue for queue in self.queues if queue.model == name],
        )


class LoadBoard:
    """NATS is asked once a second, however many ask us; and not at all when nobody does."""

    def __init__(self, cluster: Cluster, frontend_id: str) -> None:
        self._plane = ControlPlane(cluster, by=frontend_id)
        self._lock = asyncio.Lock()
        self._seen: Loads | None = None
        self._seen_at = float("-inf")  # of the event loop's clock

    async def look(self) -> Loads:
        """Raises ServiceUnavailable."""
        now = asyncio.get_running_loop().time
        async with self._lock:
            if self._seen is None or now() - self._seen_at > _MAX_AGE_S:
                try:
                    workers, queues = await self._plane.workers(), await self._plane.queues()
                except BrokerError as exc:
                    raise ServiceUnavailable("The loads cannot be read now.") from exc
                self._seen, self._seen_at = Loads(time.time(), workers, queues), now()
            return self._seen
