"""Which batches this frontend drives: those that no living frontend does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

from frontend.config import ROLE
from frontend.stored.batches.batch_driver import BatchDriver, BatchParts
from frontend.stored.batches.batch_store import ActiveBatch
from frontend.tenants.auth import ApiKeys
from frontend.tenants.tenant import Tenant
from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError, RequestError
from shared.event_wait import beat_s, wait_event
from shared.liveness.heartbeat import Writability
from shared.protocol.codec import decode
from shared.protocol.role_cards import RoleCard
from shared.telemetry.log import get_logger

_POLL_S = 1.0
_POLL_IDLE_S = 10.0  # while there are none; of one that begins here we are told
_MISSED_POLLS = 2
_MAX_DRIVEN = 16  # batches at a time; more of them wait for their turn
_AGAIN_S = 5.0  # after a failure
_CREATING_S = 60.0  # a mark without a record this long: its frontend died before it wrote one

log = get_logger(__name__)


class BatchKeeper:
    """Looks at the marks of unfinished batches every second, more seldom where there are none.

    A mark names the frontend that drives the batch, and is written by compare-and-set. A driver is
    dead when its frontend shows no heartbeat. One that comes back finds another name in the mark.
    `writability` is that of the bucket of heartbeats: while it takes none, those of the living
    expire, too.
    """

    def __init__(
        self,
        cluster: Cluster,
        parts: BatchParts,
        keys: ApiKeys,
        frontend_id: str,
        writability: Writability,
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._keys = keys
        self._frontend_id = frontend_id
        self._writability = writability
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._missed: Counter[str] = Counter()  # looks, by a driver that showed no heartbeat
        self._ownerless: dict[str, float] = {}  # batches without a record, since when
        self._wake = asyncio.Event()
        self._is_stopping = False

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                poll_s = _POLL_S
                while not self._is_stopping:
                    try:
                        poll_s = _POLL_S if await self._look(tasks) else _POLL_IDLE_S
                    except BrokerError as exc:
                        log.debug("batches_not_seen", error=str(exc))
                    if await wait_event(self._wake, beat_s(poll_s)):
                        self._wake.clear()
        finally:
            await self.stop()

    def look_soon(self) -> None:
        """There is a new batch."""
        self._wake.set()

    async def stop(self) -> None:
        """Leave all batches to other frontends; what is in the queue runs on."""
        self._is_stopping = True
        self._wake.set()
        tasks = list(self._driving.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self, tasks: asyncio.TaskGroup) -> bool:
        """Whether there are any. Raises BrokerError."""
        batches = await self._store.active()
        alive = await self._alive() if self._names_others(batches) else set()
        for batch in batches:
            task = self._driving.get(batch.batch_id)
            if task is not None:
                if batch.driver not in ("", self._frontend_id):
                    task.cancel()  # we were taken for dead
            elif len(self._driving) < _MAX_DRIVEN and self._is_free(batch, alive):
                await self._take(batch, tasks)
        return bool(batches)

    def _names_others(self, batches: list[ActiveBatch]) -> bool:
        return any(batch.driver not in ("", self._frontend_id) for batch in batches)

    def _is_free(self, batch: ActiveBatch, alive: set[str]) -> bool:
        driver = batch.driver
        if driver in ("", self._frontend_id):
            return True
        if driver in alive or not self._writability.is_steady:
            self._missed.pop(driver, None)
            return False
        self._missed[driver] += 1
        return self._missed[driver] > _MISSED_POLLS

    async def _alive(self) -> set[str]:
        alive = set()
        for entry in await self._roles.entries():
            with contextlib.suppress(ProtocolError):
                card = decode(RoleCard, entry.value)
                if card.role == ROLE:
                    alive.add(card.id)
        return alive

    async def _take(self, batch: ActiveBatch, tasks: asyncio.TaskGroup) -> None:
        try:
            stored = await self._store.find(batch.batch_id, batch.owner)
        except ProtocolError as exc:
            log.error("batch_unreadable", batch=batch.batch_id, error=str(exc))
            return
        if stored is None:
            await self._maybe_forget(batch)
            return
        tenant = self._keys.tenant_with(stored.record.tenant)
        if tenant is None:
            if time.time() < stored.record.expires:
                return  # its key is not accepted here
            tenant = Tenant(stored.record.tenant)  # nothing runs any more, it only ends
        if batch.driver == self._frontend_id or await self._store.drive(batch, self._frontend_id):
            log.info("batch_taken", batch=batch.batch_id, before=batch.driver)
            task = tasks.create_task(self._drive(batch, tenant))
            self._driving[batch.batch_id] = task
            self._parts.metrics.live.set(len(self._driving))

    async def _maybe_forget(self, batch: ActiveBatch) -> None:
        since = self._ownerless.setdefault(batch.batch_id, time.monotonic())
        if time.monotonic() - since > _CREATING_S:
            await self._store.forget(batch.batch_id)
            del self._ownerless[batch.batch_id]

    async def _drive(self, batch: ActiveBatch, tenant: Tenant) -> None:
        try:
            stored = await self._store.find(batch.batch_id, batch.owner)
            if stored is not None:
                await BatchDriver(self._parts, stored, tenant).run()
        except asyncio.CancelledError:
            if not self._is_stopping:
                return  # another frontend drives it
            await self._release(batch)
            raise
        except (BrokerError, RequestError) as exc:
            log.warning("batch_stands_still", batch=batch.batch_id, error=str(exc))
            await asyncio.sleep(_AGAIN_S)
        except Exception:
            log.exception("batch_driver_failed", batch=batch.batch_id)
            await asyncio.sleep(_AGAIN_S)
        finally:
            del self._driving[batch.batch_id]
            self._parts.metrics.live.set(len(self._driving))

    async def _release(self, batch: ActiveBatch) -> None:
        """Lets go of it, so that nobody needs to wait for our heartbeat to be gone."""
        with contextlib.suppress(BrokerError):
            for mark in await self._store.active():
                if mark.batch_id == batch.batch_id and mark.driver == self._frontend_id:
                    await self._store.drive(mark, "")
