"""Offers a request that was pulled to the worker that has its prefix."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from shared.errors import ProtocolError
from shared.event_wait import raise_if_cancelled
from shared.protocol.codec import decode, encode
from shared.protocol.notices import Offer, OfferAnswer, OfferKind, OfferVerdict
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.request import GenerateRequest
from shared.subjects import Subjects
from shared.telemetry.log import get_logger
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.capacity.capacity import Capacity
from worker.held.delivery import Delivery
from worker.metrics.request_metrics import OfferMetrics

_ANSWER_S = 0.05

log = get_logger(__name__)


class Left(NamedTuple):
    """A request that no other worker has taken."""

    delivery: Delivery  # to go on with: shared when another worker may still take it
    chain: PrefixChain  # of its prompt


class OfferMaker:
    """The offering side (docs/protocol.md, "W, offer"). Each delivery is offered once at most."""

    def __init__(
        self,
        nc: Client,
        subjects: Subjects,
        pool: str,
        prefixes: PoolPrefixes,
        capacity: Capacity,
        metrics: OfferMetrics,
    ) -> None:
        self._nc = nc
        self._subjects = subjects
        self._pool = pool
        self._prefixes = prefixes
        self._capacity = capacity
        self._metrics = metrics

    def may_offer(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """Prefills that use no cached prefix gain nothing elsewhere."""
        return (
            self._prefixes.has_others
            and delivery.num_delivered == 1
            and self._prefixes.may_have_place(request)
            and request.pooling is None
            and request.sampling.prompt_logprobs is None
        )

    async def offer(self, request: GenerateRequest, delivery: Delivery) -> Left | None:
        """None: another worker has it now."""
        chain = self._prefixes.chain(request)
        best = self._prefixes.place_for(request, chain)
        if best is None:
            return Left(delivery, chain)
        num_blocks = self._prefixes.own.num_matching(chain.hashes)
        self._metrics.made.inc()
        with self._capacity.reserved():
            verdict = await self.ask(
                best.worker, delivery, num_blocks=num_blocks, answer_s=_ANSWER_S
            )
        return self._judge(verdict, best.worker, request, Left(delivery, chain))

    def _judge(
        self, verdict: OfferVerdict | None, worker: str, request: GenerateRequest, left: Left
    ) -> Left | None:
        match verdict:
            case OfferVerdict.TAKEN:
                self._metrics.taken.inc()
                return None
            case None:
                self._metrics.unanswered.inc()
                self._prefixes.forget(worker)
                shared = dataclasses.replace(left.delivery, is_shared=True)
                return left._replace(delivery=shared)
            case OfferVerdict.UNKNOWN:
                self._prefixes.unlearn(worker, left.chain, request)
            case OfferVerdict.LEAVING:
                self._prefixes.forget(worker)
        self._metrics.refused.inc()
        return left

    async def ask(
        self,
        worker: str,
        delivery: Delivery,
        kind: OfferKind = OfferKind.PREFIX,
        *,
        num_blocks: int = 0,
        answer_s: float,
    ) -> OfferVerdict | None:
        """None when no answer came in time."""
        offer = Offer(
            data=b"" if kind is OfferKind.ROOM else delivery.data,
            ack_subject=delivery.ack_subject,
            rid=delivery.rid,
            num_blocks=num_blocks,
            num_active=self._capacity.num_active - 1,  # without this one
            num_prefill_tokens=self._capacity.num_prefill_tokens,
            kind=kind,
        )
        subject = self._subjects.offer(self._pool, worker)
        try:
            answer = await self._nc.request(subject, encode(offer), answer_s)
            raise_if_cancelled()
            return decode(OfferAnswer, answer.data).verdict
        except NoRespondersError:
            return OfferVerdict.LEAVING  # nobody has heard it
        except (NatsError, ProtocolError) as exc:
            log.info("offer_unanswered", worker=worker, rid=delivery.rid, error=repr(exc))
            return None
