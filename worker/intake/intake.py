"""What becomes of a delivery: taken, known already, given back, or out of the queue."""

from __future__ import annotations

from shared.errors import BrokerError
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.request import GenerateRequest
from shared.token_log.ownership import OwnershipLog
from worker.capacity.capacity import Capacity
from worker.claims.taker import Taker
from worker.held.delivery import Acknowledger, Delivery
from worker.held.held_request import HeldRequest, Redelivery
from worker.held.held_requests import HeldRequests
from worker.intake.offer_maker import OfferMaker
from worker.intake.screening import Screening
from worker.metrics.request_metrics import RequestMetrics
from worker.settlement.settler import Settler


class Redeliveries:
    """Deliveries of what this worker holds: it keeps what is still its own, under the new delivery
    (docs/protocol.md, "W, take").
    """

    def __init__(
        self,
        worker_id: str,
        ownership: OwnershipLog,
        held_requests: HeldRequests,
        settler: Settler,
        acks: Acknowledger,
        duplicate_delay_s: float,
    ) -> None:
        self._worker_id = worker_id
        self._ownership = ownership
        self._held_requests = held_requests
        self._settler = settler
        self._acks = acks
        self._duplicate_delay_s = duplicate_delay_s

    async def is_known_run(self, delivery: Delivery) -> bool:
        """False when nobody here runs it, or it turns out to be ours no more."""
        held = self._held_requests.get(delivery.rid)
        if held is None:
            return False
        match held.meaning_of(delivery):
            case Redelivery.DUPLICATE:
                await self._acks.nak(delivery, self._duplicate_delay_s)
                return True
            case Redelivery.AWAITED:
                held.delivery = delivery
                return True
            case Redelivery.DOUBTED:
                return await self._is_kept(held, delivery)

    async def _is_kept(self, held: HeldRequest, delivery: Delivery) -> bool:
        try:
            is_ours = await self._ownership.is_held_by(held.rid, self._worker_id, held.epoch)
        except BrokerError:
            return True
        if not is_ours:
            self._settler.forget(held)
            return False
        held.delivery = delivery
        await self._acks.in_progress(delivery)
        return True


class Intake:
    """A request's way in (docs/protocol.md, "W, take")."""

    def __init__(
        self,
        screening: Screening,
        redeliveries: Redeliveries,
        capacity: Capacity,
        acks: Acknowledger,
        offers: OfferMaker,
        taker: Taker,
        metrics: RequestMetrics,
    ) -> None:
        self._screening = screening
        self._redeliveries = redeliveries
        self._capacity = capacity
        self._acks = acks
        self._offers = offers
        self._taker = taker
        self._metrics = metrics

    async def take_in(self, delivery: Delivery) -> None:
        """See a delivery through until it runs here, or is somebody else's business."""
        if delivery.num_delivered > 1:
            self._metrics.redeliveries.inc()
        request = await self._screening.admit(delivery)
        if request is None:
            return
        if not self._capacity.can_run:
            await self._acks.nak(delivery)
        elif await self._redeliveries.is_known_run(delivery):
            return
        elif not self._capacity.has_slot:  # two classes were asked at once
            await self._acks.nak(delivery)  # it waits where any worker can take it
        elif self._offers.may_offer(request, delivery):
            await self._offer_or_take(request, delivery)
        else:
            await self._take(request, delivery)

    async def take_offered(
        self, request: GenerateRequest, delivery: Delivery, chain: PrefixChain | None = None
    ) -> bool:
        """A delivery to another worker, which waits to hear whether it still has to care for it."""
        if not self._screening.is_our_model(request):
            return False
        if await self._redeliveries.is_known_run(delivery):
            return True
        return await self._take(request, delivery, chain)

    async def take_back(self, request: GenerateRequest, delivery: Delivery) -> None:
        """What was released to another worker, which has not taken it, or has not said so."""
        if not await self._redeliveries.is_known_run(delivery):
            await self._take(request, delivery)

    async def _offer_or_take(self, request: GenerateRequest, delivery: Delivery) -> None:
        left = await self._offers.offer(request, delivery)
        # It may have been delivered once more while the other worker was asked.
        if left is not None and not await self._redeliveries.is_known_run(left.delivery):
            await self._take(request, left.delivery, left.chain)

    async def _take(
        self, request: GenerateRequest, delivery: Delivery, chain: PrefixChain | None = None
    ) -> bool:
        """Whether it has come to a claim, or was over: as `Taker.take` says."""
        if not self._capacity.admits:  # since the delivery came, or an offer of it was made
            await self._acks.nak_unclaimed(delivery)
            return False
        return await self._taker.take(request, delivery, chain)
