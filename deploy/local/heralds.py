"""Says of workers and detokenizers what they cannot say themselves: that they are dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import nats.errors

from deploy.processes.kept_process import Launch, died
from deploy.scaling.service_sides import ServiceSides
from detok.owner_table import OwnerTable
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.liveness.pool_events import GONE, PoolEvents
from shared.protocol.model_cards import ModelCard

_TIMEOUT_S = 2.0


class WorkerHerald:
    """Tells of the workers of one pool on this host, also that they start."""

    def __init__(self, sides: ServiceSides, card: ModelCard) -> None:
        self._sides = sides
        self._card = card

    async def announce_death(self, launch: Launch, status: int) -> None:
        """Its requests go on elsewhere at once; who ended by itself has handed them over."""
        if status == 0:
            return
        # First the heartbeat: whoever takes its requests looks whether it is dead.
        await _on_all_sides(self._sides, partial(self._delete_heartbeat, launch.id))
        await self.publish_death(launch.id)
        await self.publish_state(launch.id, GONE, died(status))

    async def publish_death(self, worker_id: str) -> None:
        """To the detokenizers, who know what it held."""
        with contextlib.suppress(nats.errors.Error):  # then its heartbeat expires
            for each in self._sides.clusters:
                await each.nc.publish(each.subjects.worker_died, worker_id.encode())

    async def publish_state(self, worker_id: str, state: str, detail: str = "") -> None:
        for each in self._sides.clusters:
            events = PoolEvents(each.nc, each.subjects, self._card.pool, self._card.name)
            await events.publish_worker(worker_id, state, detail)

    async def _delete_heartbeat(self, worker_id: str, cluster: Cluster) -> None:
        workers = cluster.bucket(cluster.subjects.workers_bucket)
        await workers.delete(f"{self._card.pool}.{worker_id}")


class DetokHerald:
    """Speaks for the detokenizers that this process starts: what one held that died is given back,
    so that nobody waits until it expires. What it cannot do, time does.
    """

    def __init__(self, sides: ServiceSides) -> None:
        self._sides = sides

    async def announce_death(self, launch: Launch, status: int) -> None:
        """Its partitions go to others at once; who ended by itself has given them back."""
        if status != 0:
            await _on_all_sides(self._sides, partial(_forget, launch.id))


async def _on_all_sides(sides: ServiceSides, act: Callable[[Cluster], Awaitable[None]]) -> None:
    """What cannot be done soon is left: it expires."""
    with contextlib.suppress(BrokerError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            for each in sides.clusters:
                await act(each)


async def _forget(detok_id: str, cluster: Cluster) -> None:
    await cluster.bucket(cluster.subjects.roles_bucket).delete(detok_id)
    await OwnerTable(cluster.js, cluster.subjects).free_those_of(detok_id)
