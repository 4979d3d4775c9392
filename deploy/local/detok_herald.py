"""Gives back what a detokenizer held that died, so that nobody waits until it expires."""

from __future__ import annotations

import asyncio
import contextlib

from deploy.local.kept_process import Launch
from deploy.local.service_sides import ServiceSides
from detok.owner_table import OwnerTable
from shared.cluster import Cluster
from shared.errors import BrokerError

_TIMEOUT_S = 2.0


class DetokHerald:
    """For the detokenizers that this process starts; what it cannot do, time does."""

    def __init__(self, sides: ServiceSides) -> None:
        self._sides = sides

    async def announce_death(self, launch: Launch, status: int) -> None:
        """Its partitions go to others at once; who ended by itself has given them back."""
        if status == 0:
            return
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                for each in self._sides.clusters:
                    await _forget(each, launch.id)


async def _forget(cluster: Cluster, detok_id: str) -> None:
    await cluster.bucket(cluster.subjects.roles_bucket).delete(detok_id)
    await OwnerTable(cluster.js, cluster.subjects).bury(detok_id)
