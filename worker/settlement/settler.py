"""Takes requests that are over out of the queue: finished, cancelled, or past their deadline."""

from __future__ import annotations

import asyncio
import contextlib

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import BrokerError
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.telemetry.log import get_logger
from shared.token_log.ownership import OwnershipLog
from worker.held.delivery import Acknowledger
from worker.held.held_request import HeldRequest, HoldState
from worker.runs.runs import Runs
from worker.telemetry.worker_metrics import WorkerMetrics

_ATTEMPTS = 5
_PAUSE_S = 0.2  # a broker that has just restarted refuses at once

log = get_logger(__name__)


class Settler:
    """A request leaves the queue only when a finish or an `end` of it counts."""

    def __init__(
        self,
        worker_id: str,
        runs: Runs,
        ownership: OwnershipLog,
        acks: Acknowledger,
        catalog: ModelCatalog,
        metrics: WorkerMetrics,
    ) -> None:
        self._worker_id = worker_id
        self._runs = runs
        self._ownership = ownership
        self._acks = acks
        self._catalog = catalog
        self._metrics = metrics

    async def settle(self, held: HeldRequest, finish_seq: int) -> None:
        """The finish is stored at `finish_seq`: if it counts there, the request is done."""
        try:
            is_over = await self._ack_finished(held, finish_seq)
        finally:
            self._runs.drop(held)
        if is_over:
            await self._delete_prompt(held)

    async def _ack_finished(self, held: HeldRequest, finish_seq: int) -> bool:
        """Whether it has left the queue: not, when it is somebody else's."""
        for _ in range(_ATTEMPTS):
            try:
                if await self._is_fenced(held, finish_seq):
                    self._metrics.requests_fenced.inc()
                    return False
                await self._acks.ack(held.delivery)
                self._metrics.requests_finished.inc()
                return True
            except BrokerError as exc:
                log.info("settle_retries", rid=held.rid, error=str(exc))
                await asyncio.sleep(_PAUSE_S)
        return False  # it will be delivered again, and found finished

    async def _is_fenced(self, held: HeldRequest, finish_seq: int) -> bool:
        """Whether somebody else owned the request when the finish was stored."""
        later = await self._ownership.first_from(held.rid, held.epoch + 1)
        return later is not None and later.seq < finish_seq and not isinstance(later.record, End)

    async def settle_ended(self, held: HeldRequest) -> None:
        """Somebody says the request has an `end`: look, drop it and acknowledge."""
        try:
            last = await self._ownership.last(held.rid)
        except BrokerError:
            return  # the log tells it at the next delivery
        if last is None or not isinstance(last.record, End):
            return
        if held.state is HoldState.CLAIMING:
            held.is_ended = True  # a claim behind the `end` finds it, one before it does not
            return
        self._metrics.note_end(last.record.reason)
        self._drop_ended(held)
        await self._acks.ack_over(held.delivery)
        await self._delete_prompt(held)

    async def end(
        self, held: HeldRequest, reason: FinishReason, message: str | None = None
    ) -> None:
        """End a held request that cannot go on, and settle that. Raises BrokerError."""
        await self._ownership.end(held.rid, End(0, reason, by=self._worker_id, message=message))
        self._metrics.note_end(reason)
        self._drop_ended(held)
        await self._acks.ack_over(held.delivery)
        await self._delete_prompt(held)

    def _drop_ended(self, held: HeldRequest) -> None:
        if held.trace is not None:
            held.trace.why_left = "ended"
        self._runs.drop(held)

    async def _delete_prompt(self, held: HeldRequest) -> None:
        """Its frontend does the same, but may be dead; a failure leaves rubbish, nothing worse."""
        if held.request.prompt_object:
            with contextlib.suppress(BrokerError):
                await self._catalog.erase_object(held.request.prompt_object)
