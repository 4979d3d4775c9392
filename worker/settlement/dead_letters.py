"""Ends requests that workers died of: a copy for whoever looks into it, an error for the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from shared.admin.dead_requests import DeadRequests, StoredDead
from shared.errors import BrokerError, ConfigError, LimitReached
from shared.protocol.dead import Crash, DeadRequest
from shared.protocol.finish import FinishReason
from shared.telemetry.log import get_logger
from worker.held.held_request import HeldRequest
from worker.held.held_requests import HeldRequests
from worker.metrics.request_metrics import RequestMetrics
from worker.settlement.settler import Settler

_LOOK_S = 3600.0

log = get_logger(__name__)


class DeadLetters:
    """First the copy, then the `end`, then the acknowledgement: dying in between repeats steps
    that may be repeated, and the request stays given up.
    """

    def __init__(
        self,
        dead: DeadRequests,
        dead_ttl_s: float,
        held_requests: HeldRequests,
        settler: Settler,
        metrics: RequestMetrics,
    ) -> None:
        self._dead = dead
        self._dead_ttl_s = dead_ttl_s
        self._held_requests = held_requests
        self._settler = settler
        self._metrics = metrics

    async def run(self) -> None:
        """Discard copies that are too old, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                discarded = await self._dead.drop_older_than(self._dead_ttl_s)
            except (BrokerError, NatsError, TimeoutError) as exc:
                log.warning("dead_requests_not_seen", error=repr(exc))
            else:
                self._report_discarded(discarded, "age")

    async def give_up(self, held: HeldRequest, crashes: tuple[Crash, ...]) -> None:
        """The claim is ours. Raises BrokerError: it comes again."""
        self._held_requests.abort(held)
        alone = sum(crash.was_alone for crash in crashes)
        reason = (
            f"{len(crashes)} times a worker crashed while it ran this request, "
            f"{alone} of them with nothing else on it"
        )
        await self._copy(held, crashes, reason)
        message = f"The request {held.rid} was given up: {reason}."
        await self._settler.end(held, FinishReason.POISON, message)
        self._metrics.poison_ends.inc()
        log.error("poison", rid=held.rid, workers=[crash.worker for crash in crashes])

    async def _copy(self, held: HeldRequest, crashes: tuple[Crash, ...], reason: str) -> None:
        delivery = held.delivery
        dead = DeadRequest(
            rid=held.rid,
            pool=held.request.pool,
            job_class=delivery.lane.job_class,
            reason=reason,
            crashes=crashes,
            queued_at=delivery.queued_at.timestamp(),
            died_at=time.time(),
            request=delivery.data,
            prompt_object=await self._copy_prompt(held),
        )
        try:
            discarded = await self._dead.put(dead)
        except (MaxPayloadError, LimitReached):  # alone it fills a message, or all that there is
            log.error("dead_request_too_large", rid=held.rid, num_bytes=len(delivery.data))
            discarded = await self._dead.put(msgspec.structs.replace(dead, request=b""))
        self._report_discarded(discarded, "room")

    def _report_discarded(self, discarded: Sequence[StoredDead], why: str) -> None:
        """`why`: of want of room, or for its age."""
        for stored in discarded:
            self._metrics.dead_discarded.inc()
            log.warning("dead_request_discarded", rid=stored.dead.rid, why=why)

    async def _copy_prompt(self, held: HeldRequest) -> str:
        try:
            return await self._dead.copy_prompt(held.request)
        except ConfigError as exc:
            log.error("dead_prompt_missing", rid=held.rid, error=str(exc))
            return ""
        except LimitReached as exc:  # the request has to end all the same
            log.error("dead_prompt_not_kept", rid=held.rid, error=str(exc))
            return ""
