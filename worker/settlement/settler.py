"""The ways by which a held request leaves this worker, and what is written of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import BrokerError, BrokerUnavailable, CasConflict
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End, Release
from shared.telemetry.log import get_logger
from shared.token_log.ownership import OwnershipLog
from worker.held.delivery import Acknowledger
from worker.held.held_request import HeldRequest
from worker.held.held_requests import HeldRequests
from worker.metrics.request_metrics import RequestMetrics

_ATTEMPTS = 5
_PAUSE_S = 0.2  # a broker that has just restarted refuses at once

log = get_logger(__name__)


class Settler:
    """A request leaves the queue only when a finish or an `end` of it counts. Any other is given
    back to the queue, or belongs to somebody else, and then nothing is said.
    """

    def __init__(
        self,
        worker_id: str,
        held_requests: HeldRequests,
        ownership: OwnershipLog,
        acks: Acknowledger,
        catalog: ModelCatalog,
        metrics: RequestMetrics,
        pages: Callable[[], str] = lambda: "",  # where those of its engine are
    ) -> None:
        self._pages = pages
        self._worker_id = worker_id
        self._held_requests = held_requests
        self._ownership = ownership
        self._acks = acks
        self._catalog = catalog
        self._metrics = metrics

    def leave_to_reader(self, held: HeldRequest) -> bool:
        """Its finish is stored. Whether nothing is left to do here: the detokenizer, which knows
        whether the finish counts, acknowledges the request.
        """
        if not held.is_acked_by_reader or held.request.prompt_object:
            return False
        self._metrics.finished.inc()
        self._held_requests.drop(held)
        return True

    async def settle(self, held: HeldRequest, finish_seq: int) -> None:
        """The finish is stored at `finish_seq`: if it counts there, the request is done."""
        try:
            is_over = await self._is_settled(held, finish_seq)
        finally:
            self._held_requests.drop(held)
        if is_over:
            await self._delete_prompt(held)

    async def _is_settled(self, held: HeldRequest, finish_seq: int) -> bool:
        """Whether it has left the queue, or will: not, when it is somebody else's."""
        for _ in range(_ATTEMPTS):
            try:
                if await self._is_fenced(held, finish_seq):
                    self._metrics.fenced.inc()
                    return False
                if not held.is_acked_by_reader:
                    await self._acks.ack(held.delivery)
                self._metrics.finished.inc()
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
            return  # the log says so at the next delivery
        if last is None or not isinstance(last.record, End):
            return
        if not held.note_end():
            return
        self._metrics.note_end(last.record.reason)
        self._drop_ended(held)
        await self._acks.ack_over(held.delivery)
        await self._delete_prompt(held)

    async def end(
        self, held: HeldRequest, reason: FinishReason, message: str | None = None
    ) -> None:
        """End a held request that cannot go on, and settle that. Raises BrokerError."""
        end = End(0, reason, self._worker_id, message, cost=held.cost.report(time.monotonic()))
        await self._ownership.end(held.rid, end)
        self._metrics.note_end(reason)
        self._drop_ended(held)
        await self._acks.ack_over(held.delivery)
        await self._delete_prompt(held)

    async def leave(self, held: HeldRequest) -> None:
        """It was found to be over before it ran here."""
        self._held_requests.drop(held)
        await self._acks.ack_over(held.delivery)

    async def give_back(self, held: HeldRequest, delay_s: float) -> None:
        """It has not come to a claim here: let it come again, to anybody, after the delay."""
        self._held_requests.drop(held)
        await self._acks.nak_unclaimed(held.delivery, delay_s)

    def forget(self, held: HeldRequest) -> None:
        """Somebody else has it now: say nothing."""
        self._held_requests.drop(held)

    def fence(self, held: HeldRequest) -> None:
        """Somebody else has what ran here: that is counted, and nothing is said."""
        self._metrics.fenced.inc()
        self._held_requests.drop(held)

    async def release_claimed(
        self,
        held: HeldRequest,
        epoch: int,
        *,
        has_crashed: bool,
        delay_s: float = 0.0,
        pinned: str = "",
    ) -> None:
        """Hand back what was claimed as `epoch`, and of which nothing was logged under it."""
        held.epoch = epoch
        self._held_requests.abort(held)
        await self.release(held, has_crashed=has_crashed, delay_s=delay_s, pinned=pinned)
        self._held_requests.drop(held)  # only now: a drain waits for it

    async def release(
        self, held: HeldRequest, *, has_crashed: bool, delay_s: float = 0.0, pinned: str = ""
    ) -> None:
        """Hand a stopped request back, if it is still ours: nothing is written of it any more.

        `pinned` is the revision of the weights that it needs, "" for any.
        """
        if await self.record_release(held, has_crashed=has_crashed, pinned=pinned):
            await self._acks.nak(held.delivery, delay_s)

    async def record_release(
        self, held: HeldRequest, *, has_crashed: bool, pinned: str = ""
    ) -> bool:
        """Whether it stands in the log, so that anybody may claim."""
        release = Release(
            held.epoch,
            self._worker_id,
            held.has_progressed,
            has_crashed,
            pinned,
            cost=held.cost.report(time.monotonic()),
            pages=self._pages(),
            num_cached_tokens=held.num_cached_tokens,
        )
        try:
            if not await self._is_released(held, release):
                return False
        except BrokerError as exc:
            log.warning("release_failed", rid=held.rid, error=str(exc))
            return False
        self._metrics.released.inc()
        return True

    async def _is_released(self, held: HeldRequest, release: Release) -> bool:
        """Whether the release is stored, or an `end` is: whoever gets the request next sees it."""
        try:
            await self._ownership.append(held.rid, release)
        except (CasConflict, BrokerUnavailable):
            last = await self._ownership.last(held.rid)
            return last is not None and (last.record == release or isinstance(last.record, End))
        return True

    def _drop_ended(self, held: HeldRequest) -> None:
        if held.trace is not None:
            held.trace.why_left = "ended"
        self._held_requests.drop(held)

    async def _delete_prompt(self, held: HeldRequest) -> None:
        """Its frontend does the same, but may be dead; a failure leaves rubbish, nothing worse."""
        if held.request.prompt_object:
            with contextlib.suppress(BrokerError):
                await self._catalog.erase_object(held.request.prompt_object)
