"""What becomes of a delivered request, step by step: without a broker, a clock or an engine."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from typing import Any

import pytest

from shared.protocol.finish import Cost, Finish, FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.protocol.prompt_object import PromptData
from shared.protocol.request import GenerateRequest, GivenOutput
from shared.protocol.token_ids import pack_token_ids
from shared.subjects import Lane
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from tests.worker.checkpoints import make_weights
from tests.worker.io_stage import REVISION, make_claim, make_request
from worker.claims.claim_flow import Claimant, ClaimFlow, RespectedClaims
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
from worker.held.delivery import Delivery
from worker.held.held_request import AfterClaim, LoggedOutput

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
REQUEST = make_request(deadline_s=60.0)
PROMPT = PromptData(REQUEST.prompt_ids)
OLD = "revision-before"
CANCELLED = End(0, FinishReason.CANCEL, by="frontend")


def make_delivery(num_delivered: int = 2) -> Delivery:
    return Delivery(
        b"", "ack.1", num_delivered, 1, NOW, REQUEST.rid, Lane.parse("interactive-1"), 0
    )


def make_flow(
    num_delivered: int = 2, claimant: Claimant | None = None, request: GenerateRequest = REQUEST
) -> ClaimFlow:
    """Of worker "w"; its nonces are "n0", "n1" and so on."""
    claimant = claimant or Claimant("w", make_weights(REVISION), 8.0, 30.0)
    numbers = itertools.count()
    return ClaimFlow(claimant, request, make_delivery(num_delivered), lambda: f"n{next(numbers)}")


def stored(*records: OwnershipRecord) -> list[StoredRecord]:
    """At 10, 20 and so on."""
    return [StoredRecord(10 * idx, NOW, record) for idx, record in enumerate(records, start=1)]


def claim(worker: str, **changes: Any) -> Claim:
    return make_claim(REQUEST, worker, **changes)


def claim_of(step: ClaimStep) -> Claim:
    assert isinstance(step, StoreClaim)
    return step.claim


def end_of(step: ClaimStep) -> End:
    assert isinstance(step, StoreEnd)
    return step.end


def read(flow: ClaimFlow, *records: OwnershipRecord) -> ClaimStep:
    """What follows once the ownership log has been read, and has these."""
    assert flow.on_adapter(is_here=True) is Look.RECORDS
    return flow.on_records(stored(*records))


def store(flow: ClaimFlow, step: ClaimStep, seq: int) -> ClaimStep:
    return flow.on_stored(StoredRecord(seq, NOW, claim_of(step)))


def fold_of(text: str = "", progress_epoch: int = 0, finish: Finish | None = None) -> RequestFold:
    tokens = list(text.encode())
    return RequestFold(REQUEST.rid, tokens=tokens, progress_epoch=progress_epoch, finish=finish)


def take_over(flow: ClaimFlow, fold: RequestFold, *records: OwnershipRecord) -> ClaimStep:
    """From a holder that is dead, or has released it, behind these records."""
    step = read(flow, *records)
    if isinstance(step, WhoHolds):
        step = flow.on_holder(is_dead=True)
    seq = 10 * len(records) + 10
    assert store(flow, step, seq) == ReadPast(stored(*records), seq)
    assert flow.on_past(fold) is Look.WAITED
    return flow.on_waited(1.0)


CRASHES = (claim("a"), claim("b", after_death=True), claim("c", after_death=True))


def make_suspect() -> ClaimFlow:
    """Two workers died under it; its prompt is here, and it has the worker for itself."""
    flow = make_flow()
    taken = take_over(flow, fold_of(), *CRASHES[:2])
    assert isinstance(taken, Taken)
    assert [crash.worker for crash in taken.crashes] == ["a", "b"]
    assert flow.on_prompt(PROMPT) == Isolate(taken.crashes)
    assert flow.on_isolated() == SeeRoom()
    return flow


# First deliveries


def test_it_begins_with_the_adapter() -> None:
    assert make_flow().begin() is Look.ADAPTER


def test_a_first_delivery_is_claimed_before_anything_is_read() -> None:
    flow = make_flow(num_delivered=1)
    first = claim_of(flow.on_adapter(is_here=True))
    assert (first.prev, first.worker, first.nonce, first.request_seq) == (0, "w", "n0", 1)
    assert (first.ack_subject, first.revision, first.pool) == ("ack.1", REVISION, REQUEST.pool)
    assert (first.after_death, first.is_alone) == (False, False)
    assert store(flow, StoreClaim(first), 10) is Look.WAITED
    assert flow.on_waited(1.5) == Taken(10, LoggedOutput(), workers=("w",))
    assert flow.taken.waited_s == 1.5
    assert flow.on_prompt(PROMPT) == SeeRoom()
    assert flow.on_room(AfterClaim.RUN) == Run(flow.taken, PROMPT)


def test_a_first_delivery_without_its_adapter_reads_first() -> None:
    assert make_flow(num_delivered=1).on_adapter(is_here=False) is Look.RECORDS


@pytest.mark.parametrize("is_here", [True, False])
def test_a_further_delivery_reads_first(is_here: bool) -> None:
    assert make_flow().on_adapter(is_here=is_here) is Look.RECORDS


def test_a_refused_first_claim_is_read_back() -> None:
    flow = make_flow(num_delivered=1)
    first = claim_of(flow.on_adapter(is_here=True))
    assert flow.on_refused() is Look.RECORDS
    assert flow.on_records([]) is Look.RESULT
    assert flow.on_result(is_there=False) == StoreClaim(first), "the same, with its nonce"


# What earlier records say


def test_without_records_only_a_result_tells_that_it_is_over() -> None:
    flow = make_flow()
    assert read(flow) is Look.RESULT
    assert flow.on_result(is_there=True) == Over("it has a result")


def test_what_is_over_is_not_claimed() -> None:
    assert read(make_flow(), claim("a"), CANCELLED) == Over("it was ended")
    assert read(make_flow(), claim("a", request_seq=7)) == Over("it is a duplicate")


def test_an_answer_that_was_lost_is_read_back_as_ours() -> None:
    flow = make_flow()
    before = (claim("a"), Release(10, "a"))
    ours = claim_of(read(flow, *before))
    assert flow.on_refused() is Look.RECORDS
    records = stored(*before, ours)
    assert flow.on_records(records) == ReadPast(records[:2], 30)
    assert flow.on_past(fold_of("ab", 10)) is Look.WAITED
    prefix = LoggedOutput(list(b"ab"), progress_epoch=10)
    assert flow.on_waited(0.0) == Taken(30, prefix, before=records[1], workers=("a", "w"))


@pytest.mark.parametrize("after", [claim("b"), Release(10, "b")])
def test_who_stands_behind_our_claim_has_it(after: OwnershipRecord) -> None:
    flow = make_flow(num_delivered=1)
    ours = claim_of(flow.on_adapter(is_here=True))
    assert flow.on_refused() is Look.RECORDS
    assert flow.on_records(stored(ours, after)) == Lost()


# Holders


@pytest.mark.parametrize("is_released", [True, False])
def test_nobody_asks_for_a_holder_that_there_is_not(is_released: bool) -> None:
    records = (claim("a"), Release(10, "a")) if is_released else (claim("w"),)
    again = claim_of(read(make_flow(), *records))
    assert (again.prev, again.after_death) == (10 * len(records), False)


def test_a_dead_holder_is_told_by_the_claim() -> None:
    flow, holder = make_flow(), claim("a")
    assert read(flow, holder) == WhoHolds(holder)
    over = claim_of(flow.on_holder(is_dead=True))
    assert (over.prev, over.after_death) == (10, True)


def test_a_living_holder_is_respected_once_for_each_of_its_claims() -> None:
    claimant = make_flow()._claimant
    holder, second = claim("a"), claim("a", prev=10)
    for records, is_respected in (
        ([holder], True),
        ([holder], False),
        ([holder, second], True),
        ([holder, second], False),
    ):
        flow = make_flow(claimant=claimant)
        assert isinstance(read(flow, *records), WhoHolds)
        step = flow.on_holder(is_dead=False)
        if is_respected:
            assert step == Postponed(4.0), "half the ack wait"
        else:
            assert not claim_of(step).after_death


def test_what_is_known_of_respected_claims_is_bounded() -> None:
    respected = RespectedClaims()
    assert all(respected.respect(seq, 1) for seq in range(10_001))
    assert not respected.respect(0, 1)
    assert respected.respect(20_000, 1)
    assert respected.respect(0, 1), "forgotten, so that it is respected once more"


def test_without_its_adapter_it_ends_behind_what_was_read() -> None:
    flow = make_flow()
    assert flow.on_adapter(is_here=False) is Look.RECORDS
    assert flow.on_records(stored(claim("a"), Release(10, "a"))) == StoreEnd(
        End(
            20,
            FinishReason.ADAPTER_UNLOADED,
            "w",
            "The LoRA adapter 'm' was unloaded before the request was finished.",
            REQUEST.reply,
        ),
        Over("its adapter was unloaded"),
    )


# Weights


def test_a_pin_of_ours_asks_nobody() -> None:
    assert isinstance(read(make_flow(), claim("w", revision=REVISION)), StoreClaim)
    released = (claim("a", revision=OLD), Release(10, "a", progressed=False))
    assert isinstance(read(make_flow(), *released), StoreClaim)


def test_who_has_its_weights_gets_it_until_its_deadline() -> None:
    flow = make_flow()
    records = (claim("a", revision=OLD), Release(10, "a", progressed=True))
    assert read(flow, *records) == WhoServes(frozenset({OLD}))
    assert flow.on_served(is_served=True) is Look.OVERDUE
    assert flow.on_overdue(is_overdue=False) == Postponed(0.5)
    assert flow.on_overdue(is_overdue=True) == StoreEnd(
        End(20, FinishReason.DEADLINE, "w"), Over("its deadline has passed")
    )


def test_weights_that_nobody_has_are_looked_for_behind_a_claim() -> None:
    flow = make_flow()
    records = (claim("a", revision=OLD), Release(10, "a", progressed=True))
    assert read(flow, *records) == WhoServes(frozenset({OLD}))
    assert store(flow, flow.on_served(is_served=False), 30) == ReadPast(stored(*records), 30)
    assert flow.on_past(fold_of("ab", 10)) is Look.WAITED
    assert flow.on_waited(0.0) == OtherWeights(30, OLD, 0.5)


def test_without_tokens_other_weights_begin_anew() -> None:
    flow = make_flow()
    read(flow, claim("a", revision=OLD), Release(10, "a", progressed=True))
    store(flow, flow.on_served(is_served=False), 30)
    flow.on_past(fold_of())
    assert isinstance(flow.on_waited(0.0), Taken)


def test_a_pin_that_was_told_is_waited_for_and_then_ends() -> None:
    flow = make_flow()
    records = (claim("a", revision=OLD), claim("b"), Release(20, "b", pinned=OLD))
    assert read(flow, *records) == WhoServes(frozenset({OLD}))
    assert flow.on_served(is_served=False) == AgeOf(stored(*records)[2])
    assert flow.on_age(5.0) == Postponed(2.0)
    assert flow.on_age(29.5) == Postponed(0.5)
    step = flow.on_age(30.0)
    assert isinstance(step, StoreEnd)
    assert (step.over, step.revision) == (Over("no worker has its weights"), OLD)
    end = end_of(step)
    assert (end.prev, end.reason, end.by) == (30, FinishReason.WEIGHTS_REPLACED, "w")
    assert end.message == (
        f"The request began with weights of revision {OLD}, which no worker has had for 30 s; "
        f"revision {REVISION} cannot go on with it."
    )


# Behind our claim


def test_a_finish_in_the_past_is_not_generated_again() -> None:
    flow = make_flow()
    store(flow, read(flow, claim("w")), 20)
    step = flow.on_past(fold_of("hi", 10, Finish(FinishReason.STOP)))
    assert step == Over("its finish is in the log")


@pytest.mark.parametrize(("waited_s", "is_late"), [(60.0, False), (60.1, True)])
def test_beyond_its_deadline_it_is_ended_wherever_its_log_stands(
    waited_s: float, is_late: bool
) -> None:
    flow = make_flow(num_delivered=1)
    store(flow, flow.on_adapter(is_here=True), 10)
    step = flow.on_waited(waited_s)
    if not is_late:
        assert isinstance(step, Taken)
        return
    end = End(0, FinishReason.DEADLINE, by="w", cost=Cost(queue_s=60.1))
    assert step == StoreEnd(end, Over("its deadline has passed"), is_ours=True)


def test_three_crashes_one_of_them_alone_end_it() -> None:
    *before, last = CRASHES
    alone = claim("c", after_death=True, is_alone=True)
    given_up = take_over(make_flow(), fold_of(), *before, alone)
    assert isinstance(given_up, GivenUp)
    assert [crash.worker for crash in given_up.crashes] == ["a", "b", "c"]
    assert isinstance(take_over(make_flow(), fold_of(), *before, last), Taken)
    assert isinstance(take_over(make_flow(), fold_of("x", 30), *before, alone), Taken), "progress"


# Ours


def test_a_lost_prompt_ends_it() -> None:
    flow = make_flow(num_delivered=1)
    store(flow, flow.on_adapter(is_here=True), 10)
    assert isinstance(flow.on_waited(0.0), Taken)
    assert flow.on_prompt_lost() == Failed("the prompt is lost")


@pytest.mark.parametrize(
    ("after", "expected"),
    [(AfterClaim.LEAVE, Over("it was ended")), (AfterClaim.RELEASE, Released(10))],
)
def test_what_happened_while_it_was_claimed_counts(after: AfterClaim, expected: ClaimStep) -> None:
    flow = make_flow(num_delivered=1)
    store(flow, flow.on_adapter(is_here=True), 10)
    flow.on_waited(0.0)
    assert flow.on_prompt(PROMPT) == SeeRoom()
    assert flow.on_room(after) == expected


def test_a_broker_that_does_not_answer_gets_it_back() -> None:
    assert make_flow().on_broker_error() == Postponed(1.0)


# Suspects


def test_a_second_suspect_comes_again_later() -> None:
    assert make_suspect().on_occupied(1.0) == Released(30, 1.0)


def test_a_suspect_claims_once_more_and_runs_alone() -> None:
    flow = make_suspect()
    first, alone = flow.taken, claim_of(flow.on_room(AfterClaim.RUN))
    assert (alone.prev, alone.is_alone, alone.after_death, alone.nonce) == (30, True, False, "n1")
    assert store(flow, StoreClaim(alone), 40) == SeeRoom()
    assert flow.taken == dataclasses.replace(first, epoch=40)
    assert flow.on_room(AfterClaim.RUN) == Run(flow.taken, PROMPT)


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_suspect_that_may_not_run_is_settled_under_its_last_claim(is_alone: bool) -> None:
    flow = make_suspect()
    if is_alone:
        assert store(flow, flow.on_room(AfterClaim.RUN), 40) == SeeRoom()
    assert flow.on_room(AfterClaim.RELEASE) == Released(40 if is_alone else 30)
    assert flow.on_room(AfterClaim.LEAVE) == Over("it was ended")


@pytest.mark.parametrize(
    ("record", "seq", "expected"),
    [
        (None, 0, Over("it was ended")),
        (CANCELLED, 40, Over("it was ended")),
        (claim("other"), 40, Lost()),
        (Release(30, "detok"), 40, Lost()),
        (claim("w", nonce="n1"), 40, SeeRoom()),
    ],
)
def test_a_second_claim_that_was_refused_or_not_heard_of_is_read_back(
    record: OwnershipRecord | None, seq: int, expected: ClaimStep
) -> None:
    flow = make_suspect()
    assert isinstance(flow.on_room(AfterClaim.RUN), StoreClaim)
    assert flow.on_refused() is Look.LAST
    last = None if record is None else StoredRecord(seq, NOW, record)
    assert flow.on_last(last) == expected
    assert flow.taken.epoch == (40 if expected == SeeRoom() else 30)


def test_a_second_claim_that_was_not_stored_is_tried_again() -> None:
    flow = make_suspect()
    step = flow.on_room(AfterClaim.RUN)
    assert flow.on_refused() is Look.LAST
    assert flow.on_last(StoredRecord(30, NOW, claim("w", nonce="n0"))) == step


GIVEN = make_request(
    REQUEST.rid, deadline_s=60.0, given=GivenOutput(pack_token_ids([*b"abc"]), b"xyz")
)


def test_a_fork_begins_with_what_it_was_given() -> None:
    flow = make_flow(1, request=GIVEN)
    step = flow.on_adapter(is_here=True)
    assert store(flow, step, 10) is Look.WAITED
    assert flow.on_waited(1.0) == Taken(10, LoggedOutput([*b"abc"], b"xyz"), workers=("w",))


@pytest.mark.parametrize(
    ("logged", "known"), [("", b"abc"), ("a", b"abc"), ("abc", b"abc"), ("abcd", b"abcd")]
)
def test_a_fork_goes_on_with_the_longer_of_what_was_given_and_logged(
    logged: str, known: bytes
) -> None:
    """An epoch that died while it restated what was given has made no progress."""
    flow = make_flow(request=GIVEN)
    progress_epoch = 10 if len(logged) > 3 else 0
    taken = take_over(flow, fold_of(logged, progress_epoch), claim("a"))
    assert isinstance(taken, Taken)
    assert [*taken.prefix.tokens] == [*known]
    assert taken.prefix.progress_epoch == progress_epoch
