"""Gives back what a detokenizer held that died, so that nobody waits until it expires."""

from __future__ import annotations

import asyncio
import contextlib

from deploy.local.kept_process import Launch
from detok.lease_keeper import FREE
from shared.cluster import Cluster
from shared.errors import BrokerError, CasConflict

_TIMEOUT_S = 2.0


class DetokHerald:
    """For the detokenizers that this process starts; what it cannot do, time does."""

    def __init__(self, cluster: Cluster) -> None:
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._leases = cluster.bucket(cluster.subjects.leases_bucket)

    async def announce_death(self, launch: Launch, status: int) -> None:
        """Its partitions go to others at once; who ended by itself has given them back."""
        if status == 0:
            return
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._forget(launch.id)

    async def _forget(self, detok_id: str) -> None:
        """First the heartbeat: whoever takes its partitions shares them among the living."""
        await self._roles.delete(detok_id)
        for lease in await self._leases.entries():
            if lease.value == detok_id.encode():
                with contextlib.suppress(CasConflict):  # it has expired, and is another's
                    await self._leases.put_if(lease.key, FREE, lease.revision)
