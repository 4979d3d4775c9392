"""Erases a tenant: its requests, files, batches and idempotency keys; its cached prefixes too."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from frontend.jobs.idempotency_key import keys_of
from frontend.stored.batches.batch_record import BatchStatus
from frontend.stored.batches.batch_results import BatchResults
from frontend.stored.batches.batch_store import BatchStore
from frontend.stored.erasing.frame_eraser import FrameEraser
from frontend.stored.erasing.request_eraser import RequestEraser
from frontend.stored.erasing.trace_finder import TraceFinder
from frontend.stored.files.file_contents import FileContents
from frontend.stored.files.file_store import FileStore
from frontend.tenants.cache_scope import forget_prefixes
from frontend.tenants.tenant import Tenant
from shared.cluster import Cluster
from shared.errors import CasConflict, ConfigError

_BATCH_TIMEOUT_S = 15.0  # for its driver to see that it is cancelled
_POLL_S = 0.2


class TenantErasure(msgspec.Struct, frozen=True):
    """What has been erased, and what is left until the log's age takes it."""

    tenant: str
    num_requests: int
    num_batches: int
    num_files: int
    num_idempotency_keys: int
    gone_by: int | None = None  # unix seconds; None: nothing of it is left


class TenantEraser:
    """Erases a tenant's requests for operators.

    What a tenant asks meanwhile stays: its keys are taken away first.
    """

    def __init__(self, cluster: Cluster, by: str) -> None:
        self._cluster = cluster
        self._requests = RequestEraser(cluster, by)
        self._finder = TraceFinder(cluster)
        self._frames = FrameEraser(cluster)
        contents = FileContents(cluster)
        self._files = FileStore(cluster, contents)
        self._batches = BatchStore(cluster)
        self._results = BatchResults(cluster, contents)
        self._keys = cluster.bucket(cluster.subjects.idempotency_bucket)
        self._secrets = cluster.bucket(cluster.subjects.secrets_bucket)

    async def erase(self, tenant_id: str) -> TenantErasure:
        """Raises ConfigError, RequestError or BrokerError: then some is left, and a second call
        finds it.
        """
        owner = Tenant(tenant_id).owner
        if not owner:
            raise ConfigError(
                "tenant '' has no id: where no API key is needed, everything is everybody's"
            )
        await forget_prefixes(self._secrets, owner)
        num_batches = await self._erase_batches(owner)
        traces = await self._finder.of_owner(owner)
        found = list(traces.values())
        was_running = await self._requests.end(found)
        shared_at = await self._frames.erase_all(traces) if traces else None
        await self._requests.forget(found)
        return TenantErasure(
            tenant_id,
            len(found),
            num_batches,
            await self._files.erase_all(owner),
            await self._erase_keys(owner),
            await self._requests.gone_by(shared_at, was_running=was_running),
        )

    async def _erase_batches(self, owner: str) -> int:
        """Cancelled first, so that no line of theirs is asked any more."""
        records = await self._batches.all(owner)
        for record in records:
            await self._cancel(record.id, owner)
        give_up_at = time.monotonic() + _BATCH_TIMEOUT_S
        while any(not batch.status.is_over for batch in await self._batches.all(owner)):
            if time.monotonic() > give_up_at:
                break  # nobody drives it, and nobody will: its record goes
            await asyncio.sleep(_POLL_S)
        for record in records:
            await self._results.erase(record.id)
            await self._batches.erase(record.id, owner)
        return len(records)

    async def _cancel(self, batch_id: str, owner: str) -> None:
        while True:
            stored = await self._batches.find(batch_id, owner)
            if stored is None or stored.record.status not in (
                BatchStatus.VALIDATING,
                BatchStatus.IN_PROGRESS,
            ):
                return
            with contextlib.suppress(CasConflict):  # its driver tells progress just now
                await self._batches.change(
                    stored, status=BatchStatus.CANCELLING, cancelling_at=time.time()
                )

    async def _erase_keys(self, owner: str) -> int:
        entries = await self._keys.entries(keys_of(owner))
        for entry in entries:
            await self._keys.erase(entry.key)
        return len(entries)
