"""What becomes of a delivery of a request that this worker holds already."""

from __future__ import annotations

from shared.errors import BrokerError
from shared.token_log.ownership import OwnershipLog
from worker.held.delivery import Acknowledger, Delivery
from worker.held.held_request import HeldRequest, Redelivery
from worker.held.held_requests import HeldRequests
from worker.settlement.settler import Settler


class Redeliveries:
    """Keeps what is still ours, under the new delivery (docs/protocol.md, "W, take")."""

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
