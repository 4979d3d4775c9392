"""Sorts out deliveries that this worker cannot run, whatever room it has."""

from __future__ import annotations

from shared.cluster import Cluster
from shared.errors import BrokerError, NewerLevel, ProtocolError
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import GenerateRequest
from shared.subjects import is_rid
from shared.telemetry.log import get_logger
from worker.held.delivery import Acknowledger, Delivery, is_overdue

_OTHER_MODEL_DELAY_S = 2.0

log = get_logger(__name__)


class Screening:
    """Requests of a newer build, of another tokenizer, and those that nobody can read."""

    def __init__(
        self, worker_id: str, card: ModelCard, cluster: Cluster, acks: Acknowledger
    ) -> None:
        self._worker_id = worker_id
        self._card = card
        self._cluster = cluster
        self._ownership = cluster.ownership
        self._acks = acks

    async def admit(self, delivery: Delivery) -> GenerateRequest | None:
        """The request, if this worker can run it. None: the queue has its answer."""
        try:
            request = delivery.read_request()
        except NewerLevel as exc:
            log.warning("request_of_a_newer_build", rid=delivery.rid, error=str(exc))
            await self._acks.nak(delivery, _OTHER_MODEL_DELAY_S)
            await self._cluster.level.settle_doubt()  # this worker may be outdated: then it leaves
            return None
        except ProtocolError as exc:
            await self._refuse(delivery, exc)
            return None
        if not self.is_our_model(request):
            await self._leave_to_others(request, delivery)
            return None
        return request

    def is_our_model(self, request: GenerateRequest) -> bool:
        """Another tokenizer's ids mean something else. Which weights it needs, its claims say."""
        return request.tokenizer_hash == self._card.tokenizer_hash

    async def _refuse(self, delivery: Delivery, error: ProtocolError) -> None:
        """A request that this build cannot read: its client gets an error, not silence."""
        self._cluster.malformed.note(self._cluster.subjects.lane(self._card.pool, ""), error)
        log.error("request_unreadable", rid=delivery.rid, error=str(error))
        if is_rid(delivery.rid):
            end = End(0, FinishReason.ERROR, by=self._worker_id, message=str(error))
            try:
                await self._ownership.end(delivery.rid, end)
            except BrokerError:
                return  # it comes again
        await self._acks.ack_over(delivery)

    async def _leave_to_others(self, request: GenerateRequest, delivery: Delivery) -> None:
        """Nobody may be there to take it: ended, or at its deadline, it leaves the queue."""
        try:
            last = await self._ownership.last(request.rid)
            is_over = last is not None and isinstance(last.record, End)
            if not is_over and await is_overdue(self._cluster, request, delivery):
                message = f"No worker has its tokenizer, {request.tokenizer_hash[:40]}."
                end = End(0, FinishReason.DEADLINE, by=self._worker_id, message=message)
                await self._ownership.end(request.rid, end)
                is_over = True
        except BrokerError:
            is_over = False
        if is_over:
            await self._acks.ack_over(delivery)
        else:
            await self._acks.nak(delivery, _OTHER_MODEL_DELAY_S)
