"""Hands requests back to the queue, to go on elsewhere at once."""

from __future__ import annotations

import asyncio

from shared.errors import BrokerError, BrokerUnavailable, CasConflict
from shared.protocol.log_records import End, Release
from shared.telemetry.log import get_logger
from shared.token_log.ownership import OwnershipLog
from worker.held.delivery import Acknowledger
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.runs.runs import Runs
from worker.runs.token_log import TokenLog
from worker.telemetry.worker_metrics import WorkerMetrics

log = get_logger(__name__)


class HandOver:
    """Releases requests of one worker incarnation (docs/protocol.md, "W, hand over")."""

    def __init__(
        self,
        worker_id: str,
        held_requests: HeldRequests,
        runs: Runs,
        token_log: TokenLog,
        ownership: OwnershipLog,
        acks: Acknowledger,
        metrics: WorkerMetrics,
    ) -> None:
        self._worker_id = worker_id
        self._held_requests = held_requests
        self._runs = runs
        self._token_log = token_log
        self._ownership = ownership
        self._acks = acks
        self._metrics = metrics

    async def release_all(
        self, timeout_s: float, *, crashed: bool, spare: HeldRequest | None = None
    ) -> None:
        """Stop every run, let the log have what was made, for `timeout_s` at most, then release.

        What is still being claimed is released when the claim comes back. `spare` stays.
        """
        all_but = [held for held in self._held_requests if held is not spare]
        running = [held for held in all_but if held.state is HoldState.RUNNING]
        for held in all_but:
            if held.state is HoldState.CLAIMING:
                held.is_revoked = True
                held.has_crashed |= crashed and held.run_id > 0 and held.finish is None
                self._runs.abort(held)
        for held in running:
            self._runs.abort(held)
        if not await self._token_log.wait_flushed(timeout_s):
            log.warning("released_before_flushed", num_requests=len(running))
        for held in running:
            if held.trace is not None:
                held.trace.why_left = "crashed" if crashed else "released"
            self._runs.drop(held)
        await asyncio.gather(*(self.release(held, crashed=crashed) for held in running))

    async def release(
        self, held: HeldRequest, *, crashed: bool, delay_s: float = 0.0, pinned: str = ""
    ) -> None:
        """Hand a stopped request back, if it is still ours: nothing is written of it any more."""
        release = Release(held.epoch, self._worker_id, held.has_progressed, crashed, pinned)
        try:
            if not await self._is_released(held, release):
                return
        except BrokerError as exc:
            log.warning("release_failed", rid=held.rid, error=str(exc))
            return
        self._metrics.requests_released.inc()
        await self._acks.nak(held.delivery, delay_s)

    async def _is_released(self, held: HeldRequest, release: Release) -> bool:
        """Whether the release is stored, or an `end` is: whoever gets the request next sees it."""
        try:
            await self._ownership.append(held.rid, release)
        except (CasConflict, BrokerUnavailable):
            last = await self._ownership.last(held.rid)
            return last is not None and (last.record == release or isinstance(last.record, End))
        return True
