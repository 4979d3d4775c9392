"""The rules by which a worker takes a request (docs/protocol.md, "W, take"), without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from shared.protocol.finish import NO_COST, FinishReason
from shared.protocol.log_records import Claim, End
from shared.protocol.prompt_object import PromptData
from shared.protocol.reply import SealedReply
from shared.protocol.request import GenerateRequest
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from worker.claims.claim_steps import (
    AgeOf,
    ClaimStep,
    Failed,
    GivenUp,
    Isolate,
    Look,
    Lost,
    OtherWeights,
    Over,
    Postponed,
    ReadPast,
    Released,
    Run,
    SeeRoom,
    StoreClaim,
    StoreEnd,
    Taken,
    WhoHolds,
    WhoServes,
)
from worker.claims.earlier_records import (
    EarlierRecords,
    cost_before,
    crashes_in_a_row,
    is_poison,
    is_suspect,
    pinned_revision,
    possible_pins,
    recorded_pin,
)
from worker.held.delivery import Delivery
from worker.held.held_request import AfterClaim, LoggedOutput
from worker.weights.worker_model import ServedWeights

_OTHER_WORKER_DELAY_S = 0.5  # one that has what it needs may have room now
_NO_WEIGHTS_DELAY_S = 2.0  # one may be starting
_RETRY_DELAY_S = 1.0
_MAX_RESPECTED = 10_000


class InputLimits(Protocol):
    """What an engine does not take, as it says itself, or its worker's card."""

    @property
    def takes_no_images(self) -> bool: ...

    @property
    def takes_no_embeds(self) -> bool: ...


def takes_parts(limits: InputLimits, request: GenerateRequest) -> bool:
    """Whether it takes what of a prompt is no token."""
    is_blind = bool(request.images) and limits.takes_no_images
    return not is_blind and not (request.embeds is not None and limits.takes_no_embeds)


class RespectedClaims:
    """Claims whose worker may only be slow: each is respected once, by one worker."""

    def __init__(self) -> None:
        self._claim_of: dict[int, int] = {}  # by the request's sequence in the queue

    def respect(self, request_seq: int, claim_seq: int) -> bool:
        """False when it has been already."""
        if self._claim_of.get(request_seq) == claim_seq:
            return False
        if len(self._claim_of) > _MAX_RESPECTED:
            self._claim_of.clear()
        self._claim_of[request_seq] = claim_seq
        return True


@dataclass(frozen=True, slots=True)
class Claimant:
    """The worker incarnation that claims."""

    worker_id: str
    weights: ServedWeights
    ack_wait_s: float
    revision_grace_s: float
    respected: RespectedClaims = field(default_factory=RespectedClaims)
    # Whether its engine takes the images or embeddings of a request, if its model does.
    takes: Callable[[GenerateRequest], bool] = lambda _: True
    device: Callable[[], str] = lambda: ""  # that its engine computes on


class ClaimFlow:
    """One request from its delivery to what becomes of it at this worker.

    A method takes the answer to the step before and returns the next one, up to an `Ending`.
    """

    def __init__(
        self,
        claimant: Claimant,
        request: GenerateRequest,
        delivery: Delivery,
        new_nonce: Callable[[], str],
    ) -> None:
        self._claimant = claimant
        self.request = request
        self.delivery = delivery
        self._new_nonce = new_nonce
        self._nonce = new_nonce()
        self._has_adapter = False
        self._past = EarlierRecords()
        self._ours: StoredRecord | None = None
        self._prefix = LoggedOutput.given(request)
        self._logged_cost = NO_COST  # by the log, of what was before us
        self._taken: Taken | None = None
        self._prompt: PromptData | None = None
        self._is_alone = False
        self._is_in_company = False

    def begin(self) -> ClaimStep:
        """Images and embeddings that cannot be read here are for others, where there are any."""
        return Look.ADAPTER if self._claimant.takes(self.request) else Look.TAKERS

    def on_takers(self, *, are_there: bool) -> ClaimStep:
        """Without them, the engine says why not."""
        return Look.OVERDUE if are_there else Look.ADAPTER

    def on_broker_error(self) -> Postponed:
        """A step could not be done, whichever it was."""
        return Postponed(_RETRY_DELAY_S)

    # Before the claim

    def on_adapter(self, *, is_here: bool) -> ClaimStep:
        """A first delivery has no history as a rule: the compare-and-set itself finds out."""
        self._has_adapter = is_here
        if is_here and self.delivery.num_delivered == 1:
            return self._store_claim(0)
        return Look.RECORDS

    def on_records(self, records: list[StoredRecord]) -> ClaimStep:
        self._past = EarlierRecords(records)
        if not records:
            return Look.RESULT
        if (over := self._past.over(self.delivery.request_seq)) is not None:
            return over
        if (ours := self._past.claim_of(self._nonce)) is not None:
            self._past = self._past.before_last
            return self._with_claim(ours)
        return Lost() if self._past.has_claim_of(self._nonce) else self._ask_for_weights()

    def on_result(self, *, is_there: bool) -> ClaimStep:
        return Over("it has a result") if is_there else self._ask_for_weights()

    def _ask_for_weights(self) -> ClaimStep:
        """Other weights than ours may be needed to go on."""
        pins = possible_pins(self.request, self._past.records)
        if not pins or self._claimant.weights.revision in pins:
            return self._ask_for_holder()
        return WhoServes(frozenset(pins))

    def on_served(self, *, is_served: bool) -> ClaimStep:
        if is_served:
            return Look.OVERDUE
        pin = recorded_pin(self._past.records)
        if pin is None:
            return self._ask_for_holder()  # a claim will show whether there are tokens
        return AgeOf(pin)

    def on_overdue(self, *, is_overdue: bool) -> ClaimStep:
        if not is_overdue:
            return Postponed(_OTHER_WORKER_DELAY_S)
        return StoreEnd(self._end(FinishReason.DEADLINE), Over("its deadline has passed"))

    def on_age(self, pinned_s: float) -> ClaimStep:
        """Since it was recorded which weights it needs, nobody has shown them."""
        ours, grace_s = self._claimant.weights.revision, self._claimant.revision_grace_s
        if pinned_s < grace_s:
            return Postponed(min(_NO_WEIGHTS_DELAY_S, grace_s - pinned_s))
        [revision] = possible_pins(self.request, self._past.records)
        message = (
            f"The request began with weights of revision {revision}, which no worker has had for "
            f"{grace_s:g} s; revision {ours} cannot go on with it."
        )
        end = self._end(FinishReason.WEIGHTS_REPLACED, message)
        return StoreEnd(end, Over("no worker has its weights"), revision)

    def _ask_for_holder(self) -> ClaimStep:
        holder = self._past.other_holder(self._claimant.worker_id)
        return self._claim_or_end() if holder is None else WhoHolds(holder)

    def on_holder(self, *, is_dead: bool) -> ClaimStep:
        """One that lives is respected once for each claim: it may only be slow."""
        respected = self._claimant.respected
        if not is_dead and respected.respect(self.delivery.request_seq, self._past.last_seq):
            return Postponed(self._claimant.ack_wait_s / 2)
        return self._claim_or_end(after_death=is_dead)

    def _claim_or_end(self, *, after_death: bool = False) -> ClaimStep:
        if self._has_adapter:
            return self._store_claim(self._past.last_seq, after_death=after_death)
        name = self.request.reply.model
        message = f"The LoRA adapter {name!r} was unloaded before the request was finished."
        end = self._end(FinishReason.ADAPTER_UNLOADED, message, self.request.reply)
        return StoreEnd(end, Over("its adapter was unloaded"))

    def _end(
        self, reason: FinishReason, message: str | None = None, reply: SealedReply | None = None
    ) -> End:
        """Counts only if nobody has claimed it meanwhile."""
        return End(self._past.last_seq, reason, self._claimant.worker_id, message, reply)

    # The claim

    def _store_claim(
        self, prev: int, *, after_death: bool = False, is_alone: bool = False
    ) -> StoreClaim:
        claim = Claim(
            prev=prev,
            worker=self._claimant.worker_id,
            nonce=self._nonce,
            request_seq=self.delivery.request_seq,
            ack_subject=self.delivery.ack_subject,
            tokenizer_hash=self.request.tokenizer_hash,
            text=self.request.text,
            reply=self.request.reply,
            pool=self.request.pool,
            after_death=after_death,
            is_alone=is_alone,
            revision=self._claimant.weights.revision,
            device=self._claimant.device(),
            num_given=0 if self.request.given is None else self.request.given.num_tokens,
        )
        return StoreClaim(claim)

    def on_refused(self) -> ClaimStep:
        """Something stands there already, or its answer was lost: read back."""
        return Look.RECORDS if self._taken is None else Look.LAST

    def on_stored(self, ours: StoredRecord) -> ClaimStep:
        return self._with_claim(ours) if self._taken is None else self._claimed_alone(ours)

    def _with_claim(self, ours: StoredRecord) -> ClaimStep:
        """It stands behind the past: what that was, and whether it may be run."""
        self._ours = ours
        return ReadPast(self._past.records, ours.seq) if self._past.records else Look.WAITED

    def on_past(self, fold: RequestFold) -> ClaimStep:
        if fold.finish is not None:
            return Over("its finish is in the log")
        self._prefix = LoggedOutput.known(self.request, fold)
        self._logged_cost = fold.cost
        return Look.WAITED

    def on_waited(self, waited_s: float) -> ClaimStep:
        assert self._ours is not None
        worker_id = self._claimant.worker_id
        cost = cost_before(
            self._past.records, self._logged_cost, worker_id, self.delivery.queued_at, waited_s
        )
        if waited_s > self.request.deadline_s:
            end = End(0, FinishReason.DEADLINE, by=worker_id, cost=cost)
            return StoreEnd(end, Over("its deadline has passed"), is_ours=True)
        with_ours = EarlierRecords([*self._past.records, self._ours])
        progress_epoch = self._prefix.progress_epoch
        crashes = crashes_in_a_row(with_ours.records, progress_epoch)
        if is_poison(crashes):
            return GivenUp(crashes, cost)
        epoch = self._ours.seq
        pin = pinned_revision(self.request, self._past.records, progress_epoch)
        if pin is not None and pin != self._claimant.weights.revision:
            return OtherWeights(epoch, pin)
        self._taken = Taken(
            epoch,
            self._prefix,
            crashes,
            self._past.last,
            with_ours.workers,
            waited_s,
            _is_acked_by_reader(self._ours),
            cost,
            with_ours.num_cached_tokens,
        )
        return self._taken

    # Ours

    @property
    def taken(self) -> Taken:
        """What has been claimed."""
        assert self._taken is not None
        return self._taken

    def on_prompt_lost(self) -> ClaimStep:
        return Failed("the prompt is lost")

    def on_prompt(self, prompt: PromptData) -> ClaimStep:
        self._prompt = prompt
        crashes = self.taken.crashes
        return Isolate(crashes) if is_suspect(crashes) else SeeRoom()

    def on_occupied(self, again_s: float) -> ClaimStep:
        """Other suspects are tried now: another worker may be free, or ours by then."""
        return Released(self.taken.epoch, again_s)

    def on_company(self) -> ClaimStep:
        """It is one of too many suspects to have a worker for itself."""
        self._is_in_company = True
        return SeeRoom()

    def on_isolated(self) -> ClaimStep:
        """Nothing else is here, unless it is gone itself."""
        return SeeRoom()

    def on_room(self, after: AfterClaim) -> ClaimStep:
        assert self._prompt is not None
        match after:
            case AfterClaim.LEAVE:
                return Over("it was ended")
            case AfterClaim.RELEASE:
                return Released(self.taken.epoch)
        if is_suspect(self.taken.crashes) and not (self._is_alone or self._is_in_company):
            return self.claim_alone()
        return Run(self.taken, self._prompt)

    def claim_alone(self) -> StoreClaim:
        """Claim once more what is ours, and of which nothing was logged: from now on the log says
        that it runs alone.
        """
        self._nonce = self._new_nonce()
        return self._store_claim(self.taken.epoch, is_alone=True)

    def on_last(self, last: StoredRecord | None) -> ClaimStep:
        """What stands behind our first claim, if not the second."""
        if last is None or isinstance(last.record, End):
            return Over("it was ended")
        if isinstance(last.record, Claim) and last.record.nonce == self._nonce:
            return self._claimed_alone(last)
        if last.seq != self.taken.epoch:
            return Lost()
        return self._store_claim(self.taken.epoch, is_alone=True)

    def _claimed_alone(self, ours: StoredRecord) -> ClaimStep:
        self._taken = replace(
            self.taken, epoch=ours.seq, is_acked_by_reader=_is_acked_by_reader(ours)
        )
        self._is_alone = True
        return SeeRoom()


def _is_acked_by_reader(ours: StoredRecord) -> bool:
    return isinstance(ours.record, Claim) and ours.record.is_acked_by_reader
