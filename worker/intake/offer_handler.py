"""Takes requests that other workers offer, because their prefix is here."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import ExitStack

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.broker.named_subjects import NamedSubjects
from shared.errors import MalformedMessage, NewerLevel, ProtocolError
from shared.protocol.codec import decode, encode
from shared.protocol.notices import Offer, OfferAnswer, OfferKind, OfferVerdict
from shared.protocol.request import GenerateRequest
from shared.telemetry.log import get_logger
from shared.telemetry.malformed_count import MalformedCount
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.capacity.capacity import Capacity
from worker.held.delivery import Delivery
from worker.intake.intake import Intake
from worker.metrics.request_metrics import OfferMetrics

# A run more in the batch slows the others a little, at every step of its life: for how many tokens
# of prefill that counts.
_RUN_TOKENS = 128
_FREE_RUNS = 2  # a difference too small to care for
KEPT_S = 2.0  # a place for a request that is about to be released

log = get_logger(__name__)


class KeptPlaces:
    """Room that was promised to requests which others are about to release; it soon expires."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._places: dict[str, ExitStack] = {}

    def keep(self, rid: str) -> OfferVerdict:
        if not self._capacity.can_run:
            return OfferVerdict.LEAVING
        if rid not in self._places:
            if self._capacity.num_credits() < 1:
                return OfferVerdict.FULL
            self._places[rid] = place = ExitStack()
            place.enter_context(self._capacity.reserved())
            asyncio.get_running_loop().call_later(KEPT_S, self._expire, rid, place)
        return OfferVerdict.TAKEN

    def give_up(self, rid: str) -> None:
        """Its request is here, if there is one."""
        place = self._places.pop(rid, None)
        if place is not None:
            place.close()

    def _expire(self, rid: str, place: ExitStack) -> None:
        if self._places.get(rid) is place:
            self.give_up(rid)


class OfferHandler:
    """The other side of an offer (docs/protocol.md, "W, offer"): it is answered when the request is
    claimed, so that whoever hears "taken" may forget it.
    """

    def __init__(
        self,
        intake: Intake,
        capacity: Capacity,
        prefixes: PoolPrefixes,
        metrics: OfferMetrics,
        malformed: MalformedCount,
        named: NamedSubjects,
    ) -> None:
        self._named = named
        self._malformed = malformed
        self._intake = intake
        self._capacity = capacity
        self._prefixes = prefixes
        self._metrics = metrics
        self._places = KeptPlaces(capacity)

    async def answer(self, message: Msg) -> None:
        """See one offer through."""
        try:
            offer = decode(Offer, message.data)
            if not self._named.is_role_inbox(message.reply):
                raise MalformedMessage(f"reply subject {message.reply[:80]!r}")
            if not self._named.is_ack_subject(offer.ack_subject):
                raise MalformedMessage(f"ack subject {offer.ack_subject[:80]!r}")
            if offer.kind is OfferKind.ROOM:
                await _reply(message, self._places.keep(offer.rid))
                return
            delivery = Delivery.parse(offer.data, offer.ack_subject, offer.rid, is_shared=True)
            request = delivery.read_request()
        except NewerLevel as exc:
            log.warning("offer_of_a_newer_build", rid=offer.rid, error=str(exc))
            await _reply(message, OfferVerdict.UNKNOWN)
            return
        except (ProtocolError, ValueError, IndexError) as exc:
            self._malformed.note(message.subject, exc)
            log.warning("offer_unreadable", error=repr(exc))
            return
        if offer.kind is OfferKind.RELEASED:
            verdict = await self._go_on(request, delivery.once_more)
        else:
            verdict = await self._decide(offer, request, delivery)
        await _reply(message, verdict)

    async def _go_on(self, request: GenerateRequest, delivery: Delivery) -> OfferVerdict:
        """Goes on with what another worker has released to this one."""
        self._places.give_up(request.rid)
        if not self._capacity.can_run:
            return OfferVerdict.LEAVING
        if not self._capacity.has_slot or not await self._intake.take_offered(request, delivery):
            return OfferVerdict.FULL
        return OfferVerdict.TAKEN

    async def _decide(
        self, offer: Offer, request: GenerateRequest, delivery: Delivery
    ) -> OfferVerdict:
        if not self._capacity.can_run:
            return OfferVerdict.LEAVING
        chain = self._prefixes.chain(request)
        num_gained = self._prefixes.num_gained(request, chain, offer.num_blocks)
        if not num_gained:
            return OfferVerdict.UNKNOWN
        if not self._is_worth(offer, num_gained):
            return OfferVerdict.FULL
        if not await self._intake.take_offered(request, delivery, chain):
            return OfferVerdict.FULL
        self._metrics.affinity_tokens.inc(num_gained)
        return OfferVerdict.TAKEN

    def _is_worth(self, offer: Offer, num_gained: int) -> bool:
        """Whether it gets its first token here sooner, without crowding those that run."""
        if self._capacity.num_credits() < 1:
            return False
        num_waiting = self._capacity.num_prefill_tokens - offer.num_prefill_tokens
        num_more_runs = self._capacity.num_active - offer.num_active - _FREE_RUNS
        return num_waiting + max(0, num_more_runs) * _RUN_TOKENS <= num_gained


async def _reply(message: Msg, verdict: OfferVerdict) -> None:
    with contextlib.suppress(NatsError):
        await message.respond(encode(OfferAnswer(verdict)))
