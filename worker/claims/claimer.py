"""Asks the broker, and stores, what the flow of a claim wants."""

from __future__ import annotations

import datetime
import secrets

from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.errors import BrokerError, BrokerUnavailable, CasConflict
from shared.liveness.heartbeat import Writability
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import WorkerCard
from shared.telemetry.log import get_logger
from shared.token_log.ownership import StoredRecord
from worker.claims.claim_flow import Claimant, ClaimFlow, takes_parts
from worker.claims.claim_steps import (
    AgeOf,
    ClaimStep,
    Look,
    Over,
    Question,
    ReadPast,
    StoreClaim,
    StoreEnd,
    WhoHolds,
    WhoServes,
)
from worker.claims.log_history import LogHistory
from worker.held.delivery import Delivery, is_overdue, waited_s
from worker.weights.adapters import Adapters

log = get_logger(__name__)


class Claimer:
    """The broker's side of claims, for one worker incarnation; `ClaimFlow` has the rules."""

    def __init__(
        self,
        cluster: Cluster,
        history: LogHistory,
        claimant: Claimant,
        adapters: Adapters,
        heartbeats: Writability,
    ) -> None:
        self._cluster = cluster
        self._ownership = cluster.ownership
        self._history = history
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._claimant = claimant
        self._adapters = adapters
        self._heartbeats = heartbeats

    def may_start_early(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """Whether it is new, so that its claim is likely to be stored, and everything is here that
        it needs.
        """
        is_new = delivery.num_delivered == 1 and not request.may_be_copy
        is_whole = not (request.prompt_object or request.images or request.embeds or request.audio)
        return is_new and is_whole and self._adapters.has(request.adapter)

    def flow(self, request: GenerateRequest, delivery: Delivery) -> ClaimFlow:
        """The flow of a delivered request that we do not run."""
        return ClaimFlow(self._claimant, request, delivery, lambda: secrets.token_hex(8))

    async def take(self, flow: ClaimFlow) -> ClaimStep:
        """Until its claim is stored, or is not to be. Raises BrokerError."""
        return await self._answer_all(flow, flow.begin())

    async def claim_alone(self, flow: ClaimFlow, claim: StoreClaim) -> ClaimStep:
        """Claim what is ours once more. Raises BrokerError."""
        return await self._answer_all(flow, claim)

    async def _answer_all(self, flow: ClaimFlow, step: ClaimStep) -> ClaimStep:
        while isinstance(step, Question):
            step = await self._answer(flow, step)
        return step

    async def _answer(self, flow: ClaimFlow, asked: Question) -> ClaimStep:
        request, delivery = flow.request, flow.delivery
        match asked:  # each first delivery asks for the first three
            case Look.ADAPTER:
                return flow.on_adapter(is_here=await self._adapters.ensure(request.adapter))
            case StoreClaim(claim=claim):
                return await self._store_claim(flow, claim)
            case Look.WAITED:
                return flow.on_waited(await self._waited_s(request, delivery))
            case Look.TAKERS:
                return flow.on_takers(are_there=await self._has_takers(request))
            case Look.RECORDS:
                return flow.on_records(await self._ownership.read(request.rid))
            case Look.LAST:
                return flow.on_last(await self._ownership.last(request.rid))
            case Look.RESULT:
                return flow.on_result(is_there=await self._has_result(request))
            case Look.OVERDUE:
                is_late = await is_overdue(self._cluster, request, delivery)
                return flow.on_overdue(is_overdue=is_late)
            case WhoServes(revisions=revisions):
                return flow.on_served(is_served=await self._is_served(revisions))
            case WhoHolds(claim=claim):
                return flow.on_holder(is_dead=await self._is_dead(claim))
            case AgeOf(stored=stored):
                clock = await self._cluster.js.clock(self._cluster.subjects.tokens_stream)
                return flow.on_age(clock.age_s(stored.time))
            case ReadPast(records=records, claim_seq=seq):
                return flow.on_past(await self._history.read(request.rid, records, seq))
            case StoreEnd():
                return await self._store_end(request, asked)

    async def _store_claim(self, flow: ClaimFlow, claim: Claim) -> ClaimStep:
        claim = self._ownership.level.stamp(claim)
        try:
            epoch = await self._ownership.append(flow.request.rid, claim)
        except CasConflict:
            return flow.on_refused()
        except BrokerUnavailable as exc:
            log.info("claim_unknown", rid=flow.request.rid, error=str(exc))
            return flow.on_refused()
        return flow.on_stored(StoredRecord(epoch, datetime.datetime.now(datetime.UTC), claim))

    async def _store_end(self, request: GenerateRequest, ending: StoreEnd) -> Over:
        """Raises CasConflict or BrokerUnavailable: it comes again."""
        if ending.is_ours:
            await self._ownership.end(request.rid, ending.end)
            return ending.over
        await self._ownership.append(request.rid, ending.end)
        match ending.end.reason:
            case FinishReason.WEIGHTS_REPLACED:
                log.warning("weights_replaced", rid=request.rid, revision=ending.revision)
            case FinishReason.ADAPTER_UNLOADED:
                log.info("adapter_unloaded", rid=request.rid, adapter=request.adapter)
        return ending.over

    async def _has_result(self, request: GenerateRequest) -> bool:
        subjects = self._cluster.subjects
        done = subjects.done(request.rid)
        return await self._cluster.js.get_last(subjects.results_stream, done) is not None

    async def _is_served(self, revisions: frozenset[str]) -> bool:
        """Whether a worker with one of these takes requests, or soon will, as far as we know."""
        if not self._heartbeats.is_steady:
            return True  # those that are absent may only not have been able to write
        cards = readable(WorkerCard, await self._workers.entries())
        return any(card.revision in revisions and card.state.may_take for card in cards)

    async def _has_takers(self, request: GenerateRequest) -> bool:
        """Whether a worker takes its images or embeddings, or soon will, as far as we know."""
        if not self._heartbeats.is_steady:
            return True
        cards = readable(WorkerCard, await self._workers.entries(f"{request.pool}."))
        return any(card.state.may_take and takes_parts(card, request) for card in cards)

    async def _is_dead(self, holder: Claim) -> bool:
        """Whether the worker of this claim shows no heartbeat, and could have shown one."""
        if await self._workers.get(f"{holder.pool}.{holder.worker}") is not None:
            return False
        return self._heartbeats.is_steady  # else all may have expired while none could be written

    async def _waited_s(self, request: GenerateRequest, delivery: Delivery) -> float:
        """0 where it cannot be told now: whoever keeps it ends it at its deadline all the same."""
        try:
            return await waited_s(self._cluster, request, delivery)
        except BrokerError as exc:
            log.info("wait_unknown", rid=request.rid, error=str(exc))
            return 0.0
