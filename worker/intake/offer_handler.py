"""Takes requests that other workers offer, because their prefix is here."""

from __future__ import annotations

import contextlib

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from shared.broker.named_subjects import NamedSubjects
from shared.errors import MalformedMessage, NewerLevel, ProtocolError
from shared.protocol.codec import decode, encode
from shared.protocol.notices import Offer, OfferAnswer, OfferVerdict
from shared.protocol.request import GenerateRequest
from shared.telemetry.log import get_logger
from shared.telemetry.malformed_count import MalformedCount
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.capacity.capacity import Capacity
from worker.held.delivery import Delivery
from worker.intake.intake import Intake
from worker.telemetry import WorkerMetrics

# A run more in the batch slows the others a little, at every step of its life: for how many tokens
# of prefill that counts.
_RUN_TOKENS = 128
_FREE_RUNS = 2  # a difference too small to care for

log = get_logger(__name__)


class OfferHandler:
    """The other side of an offer (docs/protocol.md, "W, offer"): it is answered when the request is
    claimed, so that whoever hears "taken" may forget it.
    """

    def __init__(
        self,
        intake: Intake,
        capacity: Capacity,
        prefixes: PoolPrefixes,
        metrics: WorkerMetrics,
        malformed: MalformedCount,
        named: NamedSubjects,
    ) -> None:
        self._named = named
        self._malformed = malformed
        self._intake = intake
        self._capacity = capacity
        self._prefixes = prefixes
        self._metrics = metrics

    async def answer(self, message: Msg) -> None:
        """See one offer through."""
        try:
            offer = decode(Offer, message.data)
            if not self._named.is_role_inbox(message.reply):
                raise MalformedMessage(f"reply subject {message.reply[:80]!r}")
            if not self._named.is_ack_subject(offer.ack_subject):
                raise MalformedMessage(f"ack subject {offer.ack_subject[:80]!r}")
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
        await _reply(message, await self._decide(offer, request, delivery))

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
