"""Says of workers what they cannot say themselves: that they start, and that they are dead."""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors

from deploy.local.kept_process import Launch, died
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.pool_events import GONE, PoolEvents
from shared.protocol.model_cards import ModelCard

_TIMEOUT_S = 2.0


class WorkerHerald:
    """For the workers of one pool on this host."""

    def __init__(self, cluster: Cluster, card: ModelCard) -> None:
        self._cluster = cluster
        self._pool = card.pool
        self._events = PoolEvents(cluster.nc, cluster.subjects, card.pool, card.name)

    async def announce_death(self, launch: Launch, status: int) -> None:
        """Its requests go on elsewhere at once; who ended by itself has handed them over."""
        if status == 0:
            return
        # First the heartbeat: whoever takes its requests looks whether it is dead.
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                workers = self._cluster.bucket(self._cluster.subjects.workers_bucket)
                await workers.delete(f"{self._pool}.{launch.id}")
        await self.publish_death(launch.id)
        await self._events.tell_worker(launch.id, GONE, died(status))

    async def publish_death(self, worker_id: str) -> None:
        """To the detokenizers, who know what it held."""
        with contextlib.suppress(nats.errors.Error):  # then its heartbeat expires
            subject = self._cluster.subjects.worker_died
            await self._cluster.nc.publish(subject, worker_id.encode())

    async def tell_state(self, worker_id: str, state: str) -> None:
        await self._events.tell_worker(worker_id, state)
