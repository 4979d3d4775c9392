"""The rules by which a worker takes a request (docs/protocol.md, "W, take")."""

from __future__ import annotations

import datetime
import itertools
import secrets
from dataclasses import dataclass, field, replace

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
from worker.claims.log_history import LogHistory
from worker.claims.overdue import is_overdue, waited_s
from worker.claims.revision_pin import pin_told, pinned_revision, possible_pins
from worker.held.delivery import Delivery
from worker.held.logged_output import LoggedOutput
from worker.weights.adapters import Adapters
from worker.weights.served_weights import ServedWeights

OTHER_WEIGHTS_DELAY_S = 0.5  # a worker that has them may have room now
_NO_WEIGHTS_DELAY_S = 2.0  # one may be starting
_MAX_WORKERS = 16  # that are told of a request's past

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """The claim is stored: the request is ours under `epoch`, to go on after `prefix`."""

    epoch: int
    prefix: LoggedOutput
    crashes: tuple[Crash, ...] = ()  # under it, since it made progress
    before: StoredRecord | None = None  # what the claim stands behind; None: it is the first
    workers: tuple[str, ...] = ()  # that have claimed it, the last ones, in order; ours is the last
    waited_s: float = field(default=0.0, compare=False)  # since it was queued


@dataclass(frozen=True, slots=True)
class Condemned:
    """The claim is stored, and nobody shall run it again."""

    crashes: tuple[Crash, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """The request has its end, or this message is a duplicate of another: acknowledge it."""

    why: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """Somebody alive seems to hold it: give it back, to come again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else claimed after us: say nothing."""


@dataclass(frozen=True, slots=True)
class OtherWeights:
    """The claim is stored, but its tokens were made with a revision that is not ours."""

    epoch: int
    revision: str


TakeResult = Taken | Condemned | Over | Postponed | Lost | OtherWeights


@dataclass(frozen=True, slots=True)
class _Past:
    """The ownership log before a claim."""

    records: list[StoredRecord] = field(default_factory=list)
    is_holder_dead: bool = False  # the last record is a claim of a worker without heartbeat

    @property
    def last_seq(self) -> int:
        return self.records[-1].seq if self.records else 0


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
        past = _Past()
        has_adapter = await self._adapters.ensure(request.adapter)
        # A first delivery has no history as a rule: the compare-and-set itself finds out.
        is_first_try = delivery.num_delivered == 1 and has_adapter
        while True:
            if not is_first_try:
                records = await self._ownership.read(request.rid)
                verdict = await self._judge(request, delivery, records, nonce)
                verdict = verdict or await self._judge_revision(request, delivery, records)
                if verdict is not None:
                    return verdict
                past = _Past(records, await self._is_holder_dead(records))
                if not past.is_holder_dead and self._should_postpone(delivery, records):
                    return Postponed(self._ack_wait_s / 2)
                if not has_adapter:
                    return await self._end_without_adapter(request, past)
            is_first_try = False
            claim = self._claim(
                request, delivery, past.last_seq, nonce, after_death=past.is_holder_dead
            )
            try:
                epoch = await self._ownership.append(request.rid, claim)
            except CasConflict:
                continue
            except BrokerUnavailable as exc:
                log.info("claim_unknown", rid=request.rid, error=str(exc))
                continue
            ours = StoredRecord(epoch, datetime.datetime.now(datetime.UTC), claim)
            return await self._resume(request, delivery, past.records, ours)

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
        self,
        request: GenerateRequest,
        delivery: Delivery,
        records: list[StoredRecord],
        nonce: str,
    ) -> TakeResult | None:
        """What earlier records decide; None to go on claiming."""
        if not records:
            done = await self._js.get_last(
                self._subjects.results_stream, self._subjects.done(request.rid)
            )
            return Over("it has a result") if done is not None else None
        last = records[-1]
        claims = [stored for stored in records if isinstance(stored.record, Claim)]
        if any(isinstance(stored.record, End) for stored in records):
            return Over("it was ended")
        if claims and claims[0].record.request_seq != delivery.request_seq:  # type: ignore[union-attr]
            return Over("it is a duplicate")
        ours = [stored for stored in claims if stored.record.nonce == nonce]  # type: ignore[union-attr]
        if ours:  # an earlier try was stored, although nobody told us
            if ours[-1].seq != last.seq:
                return Lost()
            return await self._resume(request, delivery, records[:-1], last)
        return None

    async def _judge_revision(
        self, request: GenerateRequest, delivery: Delivery, records: list[StoredRecord]
    ) -> TakeResult | None:
        """Whether other weights than ours may be needed to go on; None to go on claiming."""
        pins = possible_pins(request, records)
        if not pins or self._weights.revision in pins:
            return None
        if await self._is_served(pins):
            if await is_overdue(self._cluster, request, delivery):
                end = End(records[-1].seq, FinishReason.DEADLINE, by=self._worker_id)
                await self._ownership.append(request.rid, end)
                return Over("its deadline has passed")
            return Postponed(OTHER_WEIGHTS_DELAY_S)
        told = pin_told(records)
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
        end = End(records[-1].seq, reason, by=self._worker_id, message=message)
        await self._ownership.append(request.rid, end)  # only if nobody has claimed it meanwhile
        log.warning("weights_replaced", rid=request.rid, revision=revision)
        return Over("no worker has its weights")

    async def _end_without_adapter(self, request: GenerateRequest, past: _Past) -> TakeResult:
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

    async def _is_holder_dead(self, records: list[StoredRecord]) -> bool:
        """Whether the last record is a claim whose worker shows no heartbeat."""
        if not records:
            return False
        last = records[-1].record
        if not isinstance(last, Claim) or last.worker == self._worker_id:
            return False
        if await self._workers.get(f"{last.pool}.{last.worker}") is not None:
            return False
        return self._heartbeats.is_steady  # else all may have expired while none could be written

    def _should_postpone(self, delivery: Delivery, records: list[StoredRecord]) -> bool:
        """Once for each claim whose worker still shows a heartbeat: it may only be slow."""
        if not records:
            return False
        last = records[-1]
        if not isinstance(last.record, Claim) or last.record.worker == self._worker_id:
            return False
        if self._postponed.get(delivery.request_seq) == last.seq:
            return False
        if len(self._postponed) > 10_000:
            self._postponed.clear()
        self._postponed[delivery.request_seq] = last.seq
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
        records: list[StoredRecord],
        ours: StoredRecord,
    ) -> TakeResult:
        """Our claim is stored behind `records`: read the past, see whether it may be run."""
        prefix = LoggedOutput()
        crashes: tuple[Crash, ...] = ()
        pin: str | None = None
        if records:
            fold = await self._history.read(request.rid, records, ours.seq)
            if fold.finish is not None:
                return Over("its finish is in the log")
            prefix = LoggedOutput.of(fold)
            crashes = crashes_in_a_row([*records, ours], fold.progress_epoch)
            pin = pinned_revision(request, records, fold.progress_epoch)
        waited = await self._waited_s(request, delivery)
        if waited > request.deadline_s:
            end = End(0, FinishReason.DEADLINE, by=self._worker_id)
            await self._ownership.end(request.rid, end)
            return Over("its deadline has passed")
        if is_poison(crashes):
            return Condemned(crashes)
        if pin is not None and pin != self._weights.revision:
            return OtherWeights(ours.seq, pin)
        before = records[-1] if records else None
        return Taken(ours.seq, prefix, crashes, before, _workers_of([*records, ours]), waited)

    async def _waited_s(self, request: GenerateRequest, delivery: Delivery) -> float:
        """0 where it cannot be told now: whoever keeps it ends it at its deadline all the same."""
        try:
            return await waited_s(self._cluster, request, delivery)
        except BrokerError as exc:
            log.info("wait_unknown", rid=request.rid, error=str(exc))
            return 0.0


def _workers_of(records: list[StoredRecord]) -> tuple[str, ...]:
    """The last of those who have claimed; two claims in a row of the same one are one."""
    claims = [stored.record.worker for stored in records if isinstance(stored.record, Claim)]
    return tuple(worker for worker, _ in itertools.groupby(claims))[-_MAX_WORKERS:]
