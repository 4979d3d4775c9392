"""Hands requests whose prompt is computed to workers that decode."""

from __future__ import annotations

import dataclasses
import time

from shared.protocol.notices import OfferKind, OfferVerdict
from worker.affinity.pool_roles import PoolRoles
from worker.capacity.capacity import Capacity
from worker.engine_link.engine_messages import StepOutput
from worker.held.held_request import HeldRequest, HoldState
from worker.held.held_requests import HeldRequests
from worker.intake.intake import Intake
from worker.intake.offer_maker import OfferMaker
from worker.metrics.request_metrics import DecodeMetrics
from worker.settlement.hand_over import HandOver
from worker.weights.worker_model import ServedWeights

_MIN_LEFT = 16  # tokens that may follow: fewer are made sooner than handed over
_ASK_AGAIN_S = 1.0
_ANSWER_S = 0.25
_RELEASE_S = 1.0


class DecodeHandOver:
    """The side that computes prompts (docs/protocol.md, "W, roles").

    A request goes on here until another worker has kept a place for it, and again if that one does
    not take it in the end.
    """

    def __init__(
        self,
        roles: PoolRoles,
        offers: OfferMaker,
        held_requests: HeldRequests,
        hand_over: HandOver,
        intake: Intake,
        capacity: Capacity,
        weights: ServedWeights,
        metrics: DecodeMetrics,
    ) -> None:
        self._roles = roles
        self._offers = offers
        self._held_requests = held_requests
        self._hand_over = hand_over
        self._intake = intake
        self._capacity = capacity
        self._weights = weights
        self._metrics = metrics

    def ripe(self, step: StepOutput) -> list[HeldRequest]:
        """Those that made a token in it and may go on elsewhere."""
        if self._roles.role != "prefill" or not self._capacity.can_run:
            return []
        now = time.monotonic()
        of_run = self._held_requests.of_run
        found = [held for each in step.outputs if (held := of_run(each.run_id)) is not None]
        return [held for held in found if now >= held.stays_until and _may_go_on(held)]

    async def maybe_move(self, held: HeldRequest, pages: str) -> None:
        """`pages`: where those of this worker are."""
        held.stays_until = time.monotonic() + _ASK_AGAIN_S
        worker = self._roles.decoder(pages, self._weights.revision)
        if worker is None:
            self._keep(held)
            return
        with self._capacity.reserved():
            if await self._ask(worker, held, OfferKind.ROOM) is not OfferVerdict.TAKEN:
                self._keep(held)
                self._roles.forget(worker)
            elif await self._hand_over.release_one(held, _RELEASE_S):
                await self._hand_to(worker, held)

    def _keep(self, held: HeldRequest) -> None:
        held.is_kept = True
        self._metrics.kept.inc()

    async def _hand_to(self, worker: str, held: HeldRequest) -> None:
        verdict = await self._ask(worker, held, OfferKind.RELEASED)
        if verdict is OfferVerdict.TAKEN:
            self._metrics.moved.inc()
            return
        self._roles.forget(worker)
        self._metrics.taken_back.inc()
        delivery = held.delivery.once_more
        if verdict is None:  # it may have claimed it
            delivery = dataclasses.replace(delivery, is_shared=True)
        await self._intake.take_back(held.request, delivery)

    async def _ask(self, worker: str, held: HeldRequest, kind: OfferKind) -> OfferVerdict | None:
        return await self._offers.ask(worker, held.delivery, kind=kind, answer_s=_ANSWER_S)


def _may_go_on(held: HeldRequest) -> bool:
    """Whether others can go on with it, and there is enough left to do."""
    request = held.request
    sampling = request.sampling
    is_plain = request.pooling is None and request.audio is None and sampling.beam is None
    reads_cache = sampling.prompt_logprobs is None and not sampling.hidden_states
    is_free = held.state is HoldState.RUNNING and held.finish is None and held.watched is None
    return (
        is_free
        and held.has_progressed
        and is_plain
        and reads_cache
        and sampling.max_tokens - len(held.tokens) > _MIN_LEFT
    )
