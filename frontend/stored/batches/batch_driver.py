"""Drives one batch from its input file to its output files."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.limits.work_limits import BatchLimits
from frontend.metrics import BatchMetrics
from frontend.stored.batches.batch_files import write_files
from frontend.stored.batches.batch_input import BatchInput, check_input
from frontend.stored.batches.batch_record import (
    ENDPOINTS,
    BatchRecord,
    BatchStatus,
    Counts,
    InputError,
)
from frontend.stored.batches.batch_results import BatchResults, LineResult
from frontend.stored.batches.batch_store import BatchStore, StoredBatch
from frontend.stored.batches.line_runner import LineRunner
from frontend.stored.batches.line_slots import LineSlots
from frontend.stored.files.file_record import new_file_id
from frontend.stored.files.file_store import FileStore
from frontend.tenants.tenant import Tenant
from shared.errors import BrokerError, CasConflict, JetflockError, LimitReached, NotFound
from shared.telemetry.log import get_logger

_TICK_S = 1.0
_FULL_PAUSE_S = 5.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BatchParts:
    """What all drivers of a frontend work with."""

    inference: Inference
    files: FileStore
    store: BatchStore
    results: BatchResults
    limits: BatchLimits
    slots: LineSlots
    metrics: BatchMetrics


class BatchErased(JetflockError):
    """Its record is gone: there is nothing left to do for it."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"batch {batch_id} has been erased")


class BatchDriver:
    """Safe to be run twice at a time, and to be cancelled anywhere.

    A line has one idempotency key and one result, and the record is written by compare-and-set.
    """

    def __init__(self, parts: BatchParts, stored: StoredBatch, tenant: Tenant) -> None:
        self._parts = parts
        self._stored = stored
        self._tenant = tenant
        self._done: dict[int, bool] = {}  # lines that are over; whether they failed
        self._total = 0
        self._runner = LineRunner(
            parts.inference,
            parts.slots,
            ENDPOINTS[stored.record.endpoint],
            self._caller(),
            stored.record.id,
        )

    @property
    def _record(self) -> BatchRecord:
        return self._stored.record

    @property
    def _is_late(self) -> bool:
        return time.time() >= self._record.expires

    async def run(self) -> None:
        """Until it is over and nothing is left to clear away. Raises BrokerError."""
        batch_id = self._record.id
        if not self._record.status.is_over:
            try:
                with tempfile.TemporaryFile() as file:
                    await self._drive(file)
            except BatchErased:
                await self._parts.results.erase(batch_id)
                log.info("batch_erased", batch=batch_id)
                return
        if self._record.status.is_over:
            await self._parts.results.clear(batch_id)
            await self._parts.store.forget(batch_id)
            log.info("batch_over", batch=batch_id, status=self._record.status.value)

    async def _drive(self, file: IO[bytes]) -> None:
        if self._record.cancelling_at is not None and self._record.in_progress_at is None:
            await self._change(status=BatchStatus.CANCELLED, cancelled_at=time.time())
            return
        lines = await self._checked_input(file)
        if lines is None:
            return
        self._done = await self._parts.results.done(self._record.id)
        if self._record.status is BatchStatus.VALIDATING:
            await self._change(
                status=BatchStatus.IN_PROGRESS, in_progress_at=time.time(), counts=self._counts
            )
        if self._record.status is BatchStatus.IN_PROGRESS:
            await self._run_lines(lines)
        await self._finish(lines)

    async def _checked_input(self, file: IO[bytes]) -> BatchInput | None:
        """None: it cannot be used, and the record says so."""
        limits = self._parts.limits
        try:
            record = await self._parts.files.get(self._record.input_file_id, self._record.owner)
            await self._parts.files.read(record, file)
        except NotFound:
            gone = InputError("input_file_missing", "The input file is gone: deleted, or expired.")
            await self._fail([gone])
            return None
        checked = await asyncio.to_thread(
            check_input,
            file,
            self._record.endpoint,
            max_lines=limits.max_lines,
            max_line_bytes=limits.max_line_bytes,
        )
        if self._record.status is BatchStatus.VALIDATING and checked.errors:
            await self._fail(checked.errors)
            return None
        self._total = len(checked.input)
        return checked.input

    async def _fail(self, errors: list[InputError]) -> None:
        await self._change(status=BatchStatus.FAILED, failed_at=time.time(), errors=tuple(errors))

    async def _run_lines(self, lines: BatchInput) -> None:
        """Until all are over, or the batch is cancelled or expired."""
        todo = iter([idx for idx in range(len(lines)) if idx not in self._done])
        running = asyncio.create_task(self._run_all(todo, lines))
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=_TICK_S)
                await self._store_progress()
                if self._is_late or self._record.status is not BatchStatus.IN_PROGRESS:
                    self._runner.runs_on = False
                    break
            if running.done():
                running.result()
        except BatchErased:
            self._runner.runs_on = False
            raise
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup):
                await running

    async def _run_all(self, todo: Iterator[int], lines: BatchInput) -> None:
        with self._parts.slots.shared_with(self._record.id):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._window):
                    tasks.create_task(self._run_some(todo, lines))

    @property
    def _window(self) -> int:
        """Lines in flight; half of what the tenant may have at a time is left to others."""
        most = self._parts.limits.max_in_flight
        if self._tenant.max_concurrent is not None:
            most = min(most, max(1, self._tenant.max_concurrent // 2))
        return most

    async def _run_some(self, todo: Iterator[int], lines: BatchInput) -> None:
        for idx in todo:
            result = await self._runner.run(idx, lines.line(idx))
            await self._keep(result)
            self._done[idx] = result.is_error
            name = "failed" if result.is_error else "completed"
            self._parts.metrics.lines.labels(name).inc()

    async def _keep(self, result: LineResult) -> None:
        """Stored when it returns; a full store is waited for."""
        while True:
            try:
                await self._parts.results.put(self._record.id, result)
            except LimitReached as exc:
                log.warning("batch_results_full", batch=self._record.id, error=str(exc))
                await asyncio.sleep(_FULL_PAUSE_S)
            except BrokerError as exc:
                log.warning("line_not_kept", batch=self._record.id, error=str(exc))
                await asyncio.sleep(_TICK_S)
            else:
                return

    @property
    def _counts(self) -> Counts:
        num_failed = sum(self._done.values())
        return Counts(self._total, len(self._done) - num_failed, num_failed)

    async def _store_progress(self) -> None:
        """Into the record; and learn from it whether the batch is cancelled."""
        try:
            found = await self._parts.store.find(self._record.id, self._record.owner)
            if found is None:
                raise BatchErased(self._record.id)
            self._stored = found
            if self._record.counts != self._counts and not self._record.status.is_over:
                await self._change(counts=self._counts)
        except BrokerError as exc:
            log.debug("batch_progress_not_told", batch=self._record.id, error=str(exc))

    async def _finish(self, lines: BatchInput) -> None:
        """Write the files under names of our own: who else may be at it cannot spoil them.

        What another driver has left is deleted once our names stand in the record: from then on
        that driver cannot publish it, and had it done so, our names would not stand there.
        """
        if self._record.status.is_over:
            return
        left = self._record.files
        changes: dict[str, Any] = {}
        if self._record.finalizing_at is None:
            changes["finalizing_at"] = time.time()
        if self._record.status is BatchStatus.IN_PROGRESS:
            changes["status"] = BatchStatus.FINALIZING
        mine = (new_file_id(), new_file_id())
        await self._change(files=(*mine, *left), **changes)
        if self._record.files[:2] != mine:
            return  # somebody else finishes it
        await self._delete(left)
        written = await write_files(
            self._parts.results, self._parts.files, self._runner, self._record, lines
        )
        now = time.time()
        if self._record.cancelling_at is not None:
            ending = {"status": BatchStatus.CANCELLED, "cancelled_at": now}
        elif written.num_unfinished:
            ending = {"status": BatchStatus.EXPIRED, "expired_at": now}
        else:
            ending = {"status": BatchStatus.COMPLETED, "completed_at": now}
        try:
            self._stored = await self._parts.store.change(
                self._stored,
                **ending,
                counts=written.counts,
                usage=written.usage,
                output_file_id=written.output_file_id,
                error_file_id=written.error_file_id,
                files=(),
            )
        except CasConflict:
            await self._delete(mine)
            raise

    async def _delete(self, file_ids: tuple[str, ...]) -> None:
        for file_id in file_ids:
            with contextlib.suppress(NotFound):
                await self._parts.files.delete(file_id, self._record.owner)

    async def _change(self, **changes: Any) -> None:
        """Where somebody else has changed the record, that is read in place of writing."""
        try:
            self._stored = await self._parts.store.change(self._stored, **changes)
        except CasConflict:
            found = await self._parts.store.find(self._record.id, self._record.owner)
            if found is None:
                raise BatchErased(self._record.id) from None
            self._stored = found

    def _caller(self) -> Caller:
        record = self._record
        return Caller(
            tenant=self._tenant,
            deadline_s=max(1.0, min(self._parts.limits.deadline_s, record.expires - time.time())),
            transport="batch",
            job_class="batch",
        )
