"""The rules by which a worker takes a request (docs/protocol.md, "W, take")."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass

from shared.cluster import Cluster
from shared.errors import BrokerUnavailable, CasConflict
from shared.log import get_logger
from shared.ownership import StoredRecord
from shared.protocol import Claim, End, FinishReason, GenerateRequest
from worker.delivery import Delivery
from worker.log_history import LogHistory
from worker.logged_output import LoggedOutput

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """The claim is stored: the request is ours under `epoch`, to go on after `prefix`."""

    epoch: int
    prefix: LoggedOutput


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


TakeResult = Taken | Over | Postponed | Lost


class Claimer:
    """Claims requests for one worker incarnation."""

    def __init__(
        self, cluster: Cluster, history: LogHistory, worker_id: str, ack_wait_s: float
    ) -> None:
        self._js = cluster.js
        self._subjects = cluster.subjects
        self._ownership = cluster.ownership
        self._history = history
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._worker_id = worker_id
        self._ack_wait_s = ack_wait_s
        self._postponed: dict[int, int] = {}  # request_seq -> claim that was respected once

    async def take(self, request: GenerateRequest, delivery: Delivery) -> TakeResult:
        """Claim a delivered request that we do not run. Raises BrokerUnavailable."""
        nonce = secrets.token_hex(8)
        records: list[StoredRecord] = []
        # A first delivery has no history as a rule: the compare-and-set itself finds out.
        is_first_try = delivery.num_delivered == 1
        while True:
            if not is_first_try:
                records = await self._ownership.read(request.rid)
                verdict = await self._judge(request, delivery, records, nonce)
                if verdict is not None:
                    return verdict
            is_first_try = False
            claim = self._claim(request, delivery, records, nonce)
            try:
                epoch = await self._ownership.append(request.rid, claim)
            except CasConflict:
                continue
            except BrokerUnavailable as exc:
                log.info("claim_unknown", rid=request.rid, error=str(exc))
                continue
            return await self._resume(request, delivery, records, epoch)

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
            return await self._resume(request, delivery, records[:-1], last.seq)
        if isinstance(last.record, Claim) and await self._should_postpone(delivery, last):
            return Postponed(self._ack_wait_s / 2)
        return None

    async def _should_postpone(self, delivery: Delivery, last: StoredRecord) -> bool:
        """Once for each claim whose worker still shows a heartbeat: it may only be slow."""
        assert isinstance(last.record, Claim)
        if last.record.worker == self._worker_id:
            return False
        if self._postponed.get(delivery.request_seq) == last.seq:
            return False
        key = f"{last.record.pool}.{last.record.worker}"
        if await self._workers.get(key) is None:
            return False
        if len(self._postponed) > 10_000:
            self._postponed.clear()
        self._postponed[delivery.request_seq] = last.seq
        return True

    def _claim(
        self,
        request: GenerateRequest,
        delivery: Delivery,
        records: list[StoredRecord],
        nonce: str,
    ) -> Claim:
        return Claim(
            prev=records[-1].seq if records else 0,
            worker=self._worker_id,
            nonce=nonce,
            request_seq=delivery.request_seq,
            ack_subject=delivery.ack_subject,
            tokenizer_hash=request.tokenizer_hash,
            text=request.text,
            reply=request.reply,
            pool=request.pool,
        )

    async def _resume(
        self,
        request: GenerateRequest,
        delivery: Delivery,
        records: list[StoredRecord],
        epoch: int,
    ) -> TakeResult:
        """The claim is stored at `epoch`: read the past, check the deadline."""
        prefix = LoggedOutput()
        if records:
            fold = await self._history.read(request.rid, records, epoch)
            if fold.finish is not None:
                return Over("its finish is in the log")
            prefix = LoggedOutput.of(fold)
        if await self._is_expired(request, delivery, epoch):
            end = End(0, FinishReason.DEADLINE, by=self._worker_id)
            await self._ownership.end(request.rid, end)
            return Over("its deadline has passed")
        return Taken(epoch, prefix)

    async def _is_expired(self, request: GenerateRequest, delivery: Delivery, epoch: int) -> bool:
        """By the server's clock; ours only tells whether it is worth asking."""
        our_age_s = (datetime.datetime.now(datetime.UTC) - delivery.queued_at).total_seconds()
        if abs(our_age_s) < request.deadline_s / 2:
            return False
        claim = await self._ownership.first_from(request.rid, epoch)
        if claim is None:
            return False
        return (claim.time - delivery.queued_at).total_seconds() > request.deadline_s
