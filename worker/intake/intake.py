"""What becomes of a delivery: taken, known already, given back, or out of the queue."""

from __future__ import annotations

from shared.cluster import Cluster
from shared.errors import BrokerError, NewerLevel, ProtocolError
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.model_cards import ModelCard
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.request import GenerateRequest
from shared.subjects import is_rid
from shared.telemetry.log import get_logger
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.capacity.capacity import Capacity
from worker.claims.overdue import is_overdue
from worker.claims.taker import Taker
from worker.held.delivery import Acknowledger, Delivery
from worker.held.held_request import HoldState
from worker.held.held_requests import HeldRequests
from worker.intake.offer_maker import OfferMaker
from worker.runs.runs import Runs
from worker.telemetry.worker_metrics import WorkerMetrics

_OTHER_MODEL_DELAY_S = 2.0

log = get_logger(__name__)


class Intake:
    """A request's way in (docs/protocol.md, "W, take")."""

    def __init__(
        self,
        worker_id: str,
        card: ModelCard,
        cluster: Cluster,
        acks: Acknowledger,
        held_requests: HeldRequests,
        capacity: Capacity,
        runs: Runs,
        taker: Taker,
        prefixes: PoolPrefixes,
        offers: OfferMaker,
        metrics: WorkerMetrics,
        duplicate_delay_s: float,
    ) -> None:
        self._worker_id = worker_id
        self._card = card
        self._cluster = cluster
        self._ownership = cluster.ownership
        self._acks = acks
        self._held_requests = held_requests
        self._capacity = capacity
        self._runs = runs
        self._taker = taker
        self._prefixes = prefixes
        self._offers = offers
        self._metrics = metrics
        self._duplicate_delay_s = duplicate_delay_s

    async def take_in(self, delivery: Delivery) -> None:
        """See a delivery through until it runs here, or is somebody else's business."""
        if delivery.num_delivered > 1:
            self._metrics.redeliveries.inc()
        try:
            request = delivery.read_request()
        except NewerLevel as exc:
            log.warning("request_of_a_newer_build", rid=delivery.rid, error=str(exc))
            await self._acks.nak(delivery, _OTHER_MODEL_DELAY_S)
            await self._cluster.level.settle_doubt()  # this worker may be outdated: then it leaves
            return
        except ProtocolError as exc:
            await self._refuse(delivery, exc)
            return
        if not self._is_our_model(request):
            await self._leave_to_others(request, delivery)
        elif not self._capacity.can_run:
            await self._acks.nak(delivery)
        elif await self._is_known_run(request, delivery):
            return
        elif not self._capacity.has_slot:  # two classes were asked at once
            await self._acks.nak(delivery)  # it waits where any worker can take it
        elif self._may_offer(request, delivery):
            await self._offer_or_take(request, delivery)
        else:
            await self._taker.take(request, delivery)

    def _may_offer(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """Prefills that use no cached prefix gain nothing elsewhere."""
        return (
            self._prefixes.has_others
            and delivery.num_delivered == 1
            and self._prefixes.may_have_place(request)
            and request.pooling is None
            and request.sampling.prompt_logprobs is None
        )

    async def take_offered(
        self, request: GenerateRequest, delivery: Delivery, chain: PrefixChain
    ) -> bool:
        """A delivery to another worker, which waits to hear whether it still has to care for it."""
        if not self._is_our_model(request):
            return False
        if await self._is_known_run(request, delivery):
            return True
        return await self._taker.take(request, delivery, _known_chain(request, chain))

    async def _offer_or_take(self, request: GenerateRequest, delivery: Delivery) -> None:
        chain = self._prefixes.chain(request)
        left = await self._offers.offer(request, delivery, chain)
        # It may have been delivered once more while the other worker was asked.
        if left is not None and not await self._is_known_run(request, left):
            await self._taker.take(request, left, _known_chain(request, chain))

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

    def _is_our_model(self, request: GenerateRequest) -> bool:
        """Another tokenizer's ids mean something else. Which weights it needs, its claims say."""
        return request.tokenizer_hash == self._card.tokenizer_hash

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

    async def _is_known_run(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """A delivery of a request that we hold already: keep it, unless it is ours no more."""
        held = self._held_requests.get(request.rid)
        if held is None:
            return False
        if held.delivery.request_seq != delivery.request_seq:  # a duplicate of what we run
            await self._acks.nak(delivery, self._duplicate_delay_s)
            return True
        if held.state is HoldState.CLAIMING:
            held.delivery = delivery
            return True
        try:
            is_ours = await self._ownership.is_held_by(held.rid, self._worker_id, held.epoch)
        except BrokerError:
            return True
        if not is_ours:
            self._runs.drop(held)
            return False
        held.delivery = delivery
        await self._acks.in_progress(delivery)
        return True


def _known_chain(request: GenerateRequest, chain: PrefixChain) -> PrefixChain | None:
    """Not of a prompt that is in the object store."""
    return chain if request.prompt_ids else None
