"""The rules by which a worker takes a request (docs/protocol.md, "W, take")."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import replace

from shared.broker.kv_bucket import readable
from shared.cluster import Cluster
from shared.errors import BrokerError, BrokerUnavailable, CasConflict
from shared.liveness.heartbeat import Writability
from shared.protocol.dead import Crash
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import WorkerCard
from shared.telemetry.log import get_logger
from shared.token_log.ownership import StoredRecord
from worker.claims.crash_count import crashes_in_a_row, is_poison
from worker.claims.earlier_records import EarlierRecords
from worker.claims.log_history import LogHistory
from worker.claims.overdue import is_overdue, waited_s
from worker.claims.revision_pin import pin_told, pinned_revision, possible_pins
from worker.claims.take_result import (
    Condemned,
    Lost,
    OtherWeights,
    Over,
    Postponed,
    Taken,
    TakeResult,
)
from worker.held.delivery import Delivery
from worker.held.logged_output import LoggedOutput
from worker.weights.adapters import Adapters
from worker.weights.served_weights import ServedWeights

OTHER_WEIGHTS_DELAY_S = 0.5  # a worker that has them may have room now
_NO_WEIGHTS_DELAY_S = 2.0  # one may be starting

log = get_logger(__name__)


class Claimer:
    """Claims requests for one worker incarnation."""

    def __init__(
        self,
        cluster: Cluster,
        history: LogHistory,
        worker_id: str,
        weights: ServedWeights,
        adapters: Adapters,
        heartbeats: Writability,
        ack_wait_s: float,
        revision_grace_s: float,
    ) -> None:
        self._cluster = cluster
        self._js = cluster.js
        self._subjects = cluster.subjects
        self._ownership = cluster.ownership
        self._history = history
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._worker_id = worker_id
        self._weights = weights
        self._adapters = adapters
        self._ack_wait_s = ack_wait_s
        self._heartbeats = heartbeats
        self._revision_grace_s = revision_grace_s
        self._postponed: dict[int, int] = {}  # request_seq -> claim that was respected once

    def may_start_early(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """Whether it is new, so that its claim is likely to be stored, and everything is here that
        it needs.
        """
        is_new = delivery.num_delivered == 1 and not request.may_be_copy
        is_whole = not (request.prompt_object or request.images)
        return is_new and is_whole and self._adapters.has(request.adapter)

    async def take(self, request: GenerateRequest, delivery: Delivery) -> TakeResult:
        """Claim a delivered request that we do not run. Raises BrokerUnavailable."""
        nonce = secrets.token_hex(8)
        past, is_holder_dead = EarlierRecords(), False
        has_adapter = await self._adapters.ensure(request.adapter)
        # A first delivery has no history as a rule: the compare-and-set itself finds out.
        is_first_try = delivery.num_delivered == 1 and has_adapter
        while True:
            if not is_first_try:
                past = EarlierRecords(await self._ownership.read(request.rid))
                verdict = await self._judge(request, delivery, past, nonce)
                verdict = verdict or await self._judge_revision(request, delivery, past)
                if verdict is not None:
                    return verdict
                is_holder_dead = await self._is_holder_dead(past)
                if not is_holder_dead and self._should_postpone(delivery, past):
                    return Postponed(self._ack_wait_s / 2)
                if not has_adapter:
                    return await self._end_without_adapter(request, past)
            is_first_try = False
            claim = self._claim(request, delivery, past.last_seq, nonce, after_death=is_holder_dead)
            try:
                epoch = await self._ownership.append(request.rid, claim)
            except CasConflict:
                continue
            except BrokerUnavailable as exc:
                log.info("claim_unknown", rid=request.rid, error=str(exc))
                continue
            ours = StoredRecord(epoch, datetime.datetime.now(datetime.UTC), claim)
            return await self._resume(request, delivery, past, ours)

    async def claim_alone(
        self, request: GenerateRequest, delivery: Delivery, taken: Taken
    ) -> TakeResult:
        """Claim once more what is ours: from now on the log says that it runs alone.

        Nothing may have been logged under the first claim. Raises BrokerUnavailable.
        """
        nonce = secrets.token_hex(8)
        claim = self._claim(request, delivery, taken.epoch, nonce, is_alone=True)
        while True:
            try:
                epoch = await self._ownership.append(request.rid, claim)
                return replace(taken, epoch=epoch)
            except (CasConflict, BrokerUnavailable):
                last = await self._ownership.last(request.rid)
            if last is None or isinstance(last.record, End):
                return Over("it was ended")
            if isinstance(last.record, Claim) and last.record.nonce == nonce:
                return replace(taken, epoch=last.seq)
            if last.seq != taken.epoch:
                return Lost()

    async def _judge(
        self, request: GenerateRequest, delivery: Delivery, past: EarlierRecords, nonce: str
    ) -> TakeResult | None:
        """What earlier records decide; None to go on claiming."""
        if not past.records:
            done = await self._js.get_last(
                self._subjects.results_stream, self._subjects.done(request.rid)
            )
            return Over("it has a result") if done is not None else None
        if (over := past.over(delivery.request_seq)) is not None:
            return over
        if (ours := past.claim_of(nonce)) is not None:
            return await self._resume(request, delivery, past.before_last, ours)
        return Lost() if past.has_claim_of(nonce) else None

    async def _judge_revision(
        self, request: GenerateRequest, delivery: Delivery, past: EarlierRecords
    ) -> TakeResult | None:
        """Whether other weights than ours may be needed to go on; None to go on claiming."""
        pins = possible_pins(request, past.records)
        if not pins or self._weights.revision in pins:
            return None
        if await self._is_served(pins):
            if await is_overdue(self._cluster, request, delivery):
                end = End(past.last_seq, FinishReason.DEADLINE, by=self._worker_id)
                await self._ownership.append(request.rid, end)
                return Over("its deadline has passed")
            return Postponed(OTHER_WEIGHTS_DELAY_S)
        told = pin_told(past.records)
        if told is None:
            return None  # a claim will tell whether there are tokens
        absent_s = (await self._js.clock(self._subjects.tokens_stream)).age_s(told.time)
        if absent_s < self._revision_grace_s:
            return Postponed(min(_NO_WEIGHTS_DELAY_S, self._revision_grace_s - absent_s))
        [revision] = pins
        message = (
            f"The request began with weights of revision {revision}, which no worker has had for "
            f"{self._revision_grace_s:g} s; revision {self._weights.revision} cannot go on with it."
        )
        reason = FinishReason.WEIGHTS_REPLACED
        end = End(past.last_seq, reason, by=self._worker_id, message=message)
        await self._ownership.append(request.rid, end)  # only if nobody has claimed it meanwhile
        log.warning("weights_replaced", rid=request.rid, revision=revision)
        return Over("no worker has its weights")

    async def _end_without_adapter(
        self, request: GenerateRequest, past: EarlierRecords
    ) -> TakeResult:
        """Its files are gone. Raises CasConflict or BrokerUnavailable: it comes again."""
        name = request.reply.model
        message = f"The LoRA adapter {name!r} was unloaded before the request was finished."
        reason = FinishReason.ADAPTER_UNLOADED
        end = End(past.last_seq, reason, self._worker_id, message, request.reply)
        await self._ownership.append(request.rid, end)
        log.info("adapter_unloaded", rid=request.rid, adapter=request.adapter)
        return Over("its adapter was unloaded")

    async def _is_served(self, revisions: set[str]) -> bool:
        """Whether a worker with one of these takes requests, or soon will, as far as we know."""
        if not self._heartbeats.is_steady:
            return True  # those that are absent may only not have been able to write
        cards = readable(WorkerCard, await self._workers.entries())
        return any(card.revision in revisions and card.state.may_take for card in cards)

    async def _is_holder_dead(self, past: EarlierRecords) -> bool:
        """Whether the last record is a claim whose worker shows no heartbeat."""
        claim = past.other_holder(self._worker_id)
        if claim is None:
            return False
        if await self._workers.get(f"{claim.pool}.{claim.worker}") is not None:
            return False
        return self._heartbeats.is_steady  # else all may have expired while none could be written

    def _should_postpone(self, delivery: Delivery, past: EarlierRecords) -> bool:
        """Once for each claim whose worker still shows a heartbeat: it may only be slow."""
        if past.other_holder(self._worker_id) is None:
            return False
        if self._postponed.get(delivery.request_seq) == past.last_seq:
            return False
        if len(self._postponed) > 10_000:
            self._postponed.clear()
        self._postponed[delivery.request_seq] = past.last_seq
        return True

    def _claim(
        self,
        request: GenerateRequest,
        delivery: Delivery,
        prev: int,
        nonce: str,
        *,
        after_death: bool = False,
        is_alone: bool = False,
    ) -> Claim:
        return Claim(
            prev=prev,
            worker=self._worker_id,
            nonce=nonce,
            request_seq=delivery.request_seq,
            ack_subject=delivery.ack_subject,
            tokenizer_hash=request.tokenizer_hash,
            text=request.text,
            reply=request.reply,
            pool=request.pool,
            after_death=after_death,
            is_alone=is_alone,
            revision=self._weights.revision,
        )

    async def _resume(
        self,
        request: GenerateRequest,
        delivery: Delivery,
        past: EarlierRecords,
        ours: StoredRecord,
    ) -> TakeResult:
        """Our claim is stored behind `past`: read the past, see whether it may be run."""
        prefix = LoggedOutput()
        crashes: tuple[Crash, ...] = ()
        pin: str | None = None
        with_ours = EarlierRecords([*past.records, ours])
        if past.records:
            fold = await self._history.read(request.rid, past.records, ours.seq)
            if fold.finish is not None:
                return Over("its finish is in the log")
            prefix = LoggedOutput.of(fold)
            crashes = crashes_in_a_row(with_ours.records, fold.progress_epoch)
            pin = pinned_revision(request, past.records, fold.progress_epoch)
        waited = await self._waited_s(request, delivery)
        if waited > request.deadline_s:
            end = End(0, FinishReason.DEADLINE, by=self._worker_id)
            await self._ownership.end(request.rid, end)
            return Over("its deadline has passed")
        if is_poison(crashes):
            return Condemned(crashes)
        if pin is not None and pin != self._weights.revision:
            return OtherWeights(ours.seq, pin)
        return Taken(ours.seq, prefix, crashes, past.last, with_ours.workers, waited)

    async def _waited_s(self, request: GenerateRequest, delivery: Delivery) -> float:
        """0 where it cannot be told now: whoever keeps it ends it at its deadline all the same."""
        try:
            return await waited_s(self._cluster, request, delivery)
        except BrokerError as exc:
            log.info("wait_unknown", rid=request.rid, error=str(exc))
            return 0.0
