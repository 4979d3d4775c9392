"""Tells everybody that this host starts workers of a pool, and whether they come up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

from deploy.processes.worker_fleet import WorkerFleet
from shared.broker.kv_bucket import readable
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError
from shared.liveness.heartbeat import Heartbeat
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerCard, WorkerState
from shared.telemetry.log import get_logger

_LOOK_S = 0.5
_WITHDRAW_S = 2.0

log = get_logger(__name__)


class PoolCare:
    """What one supervisor does for one pool. While it lives, requests for the model may wait."""

    def __init__(
        self, cluster: Cluster, card: ModelCard, supervisor_id: str, fleet: WorkerFleet
    ) -> None:
        self._id = supervisor_id
        self._pool = card.pool
        self._fleet = fleet
        self._catalog = ModelCatalog(cluster)
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._heartbeat = Heartbeat(roles, supervisor_id, self._card)
        self._started_at = time.time()

    async def run(self) -> None:
        """Until cancelled; then the model is withdrawn, unless others serve it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._heartbeat.run())
                tasks.create_task(self._watch())
        finally:
            await self._withdraw()

    async def _watch(self) -> None:
        told = ""
        while True:
            if not all(kept.is_serving for kept in self._fleet.members):
                with contextlib.suppress(BrokerError):
                    await self._note_serving()
            if self._fleet.failure != told:
                told = self._fleet.failure
                log.warning("workers_fail", failure=told) if told else log.info("workers_recover")
                self._heartbeat.beat_soon()
            await asyncio.sleep(_LOOK_S)

    async def _note_serving(self) -> None:
        cards = readable(WorkerCard, await self._workers.entries(f"{self._pool}."))
        up = {card.worker for card in cards if card.state is not WorkerState.LOADING}
        for kept in self._fleet.members:
            if kept.launch.id in up:
                kept.note_serving()

    async def _withdraw(self) -> None:
        with contextlib.suppress(BrokerError, TimeoutError):  # then it is only not served
            async with asyncio.timeout(_WITHDRAW_S):
                await self._catalog.withdraw(self._pool, self._id)

    def _card(self) -> RoleCard:
        return RoleCard(
            id=self._id,
            role=SUPERVISOR,
            level=FEATURE_LEVEL,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            pool=self._pool,
            failure=self._fleet.failure,
        )
