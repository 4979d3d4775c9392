"""A request is made with one revision of the weights, or starts anew, or ends: never with two."""

from __future__ import annotations

import asyncio
import datetime

import msgspec
import pytest

from shared.broker.stream_info import ClockReading
from shared.errors import CasConflict
from shared.liveness.heartbeat import Writability
from shared.protocol.codec import encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.token_log.ownership import StoredRecord
from tests.eventually import Looks
from tests.worker.checkpoints import make_weights
from tests.worker.claims.test_claimer import make_claimer, take_by
from tests.worker.io_stage import POOL, Stage, ids, make_claim, make_request
from tests.worker.running_worker import output_of, running_worker
from worker.claims.claim_steps import OtherWeights, Over, Postponed, Taken
from worker.claims.earlier_records import possible_pins, recorded_pin
from worker.held.delivery import Delivery
from worker.held.held_request import LoggedOutput

integration = pytest.mark.integration

OLD, NEW = "old", "new"


async def show_worker(stage: Stage, name: str, revision: str, state: WorkerState) -> None:
    card = WorkerCard(name, POOL, "m", revision, state)
    bucket = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    await bucket.put(f"{POOL}.{name}", encode(card))


async def make_begun(
    stage: Stage, text: str, last: OwnershipRecord | None = None
) -> tuple[GenerateRequest, Delivery]:
    """A worker that is dead by now claimed it under OLD, logged this, perhaps released it."""
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    seq = delivery.request_seq
    claim = make_claim(request, "dead", request_seq=seq, revision=OLD)
    epoch = await stage.append(request.rid, claim)
    if text:
        await stage.write("dead", request.rid, epoch, 0, ids(text))
    if last is not None:
        await stage.append(request.rid, msgspec.structs.replace(last, prev=epoch))
    return request, delivery


@integration
async def test_a_claim_names_the_weights(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    await take_by(make_claimer(stage, "w", revision=NEW), request, delivery)
    [stored] = await stage.records(request.rid)
    assert isinstance(stored.record, Claim)
    assert stored.record.revision == NEW


@integration
@pytest.mark.parametrize("state", [WorkerState.READY, WorkerState.PAUSED, WorkerState.LOADING])
async def test_who_may_be_needed_and_lives_is_waited_for(stage: Stage, state: WorkerState) -> None:
    request, delivery = await make_begun(stage, "ab")
    await show_worker(stage, "other", OLD, state)
    assert await take_by(make_claimer(stage, "w", revision=NEW), request, delivery) == Postponed(
        0.5
    )
    assert len(await stage.records(request.rid)) == 1


@integration
async def test_who_leaves_is_not_waited_for(stage: Stage) -> None:
    request, delivery = await make_begun(stage, "ab")
    await show_worker(stage, "other", OLD, WorkerState.DRAINING)
    await show_worker(stage, "third", NEW, WorkerState.READY)
    result = await take_by(make_claimer(stage, "w", revision=NEW), request, delivery)
    assert isinstance(result, OtherWeights)
    assert result.revision == OLD


@integration
async def test_absence_proves_nothing_while_heartbeats_cannot_be_written(stage: Stage) -> None:
    request, delivery = await make_begun(stage, "ab")
    heartbeats = Writability()
    heartbeats.note(is_written=False)
    claimer = make_claimer(stage, "w", heartbeats, revision=NEW)
    assert await take_by(claimer, request, delivery) == Postponed(0.5)


@integration
async def test_without_tokens_it_starts_anew_under_other_weights(stage: Stage) -> None:
    request, delivery = await make_begun(stage, "")
    result = await take_by(make_claimer(stage, "w", revision=NEW), request, delivery)
    assert isinstance(result, Taken)
    assert result.prefix == LoggedOutput([], b"", b"")


@integration
async def test_what_was_released_without_a_token_waits_for_nobody(stage: Stage) -> None:
    request, delivery = await make_begun(stage, "", Release(0, "dead", progressed=False))
    await show_worker(stage, "other", OLD, WorkerState.READY)
    assert isinstance(
        await take_by(make_claimer(stage, "w", revision=NEW), request, delivery), Taken
    )


@integration
async def test_the_same_weights_go_on_with_the_tokens(stage: Stage) -> None:
    request, delivery = await make_begun(stage, "ab", Release(0, "dead", progressed=True))
    result = await take_by(make_claimer(stage, "w", revision=OLD), request, delivery)
    assert isinstance(result, Taken)
    assert result.prefix.tokens == ids("ab")


@integration
async def test_a_claim_of_an_older_build_was_made_under_the_requests_revision(
    stage: Stage,
) -> None:
    request = make_request(revision=NEW)
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    claim = make_claim(request, "dead", request_seq=delivery.request_seq)
    await stage.write("dead", request.rid, await stage.append(request.rid, claim), 0, ids("a"))
    assert isinstance(
        await take_by(make_claimer(stage, "w", revision=NEW), request, delivery), Taken
    )


@integration
async def test_a_worker_with_other_weights_says_so_and_the_right_one_goes_on(
    stage: Stage,
) -> None:
    request, delivery = await make_begun(stage, "ab", Release(0, "dead", progressed=True))
    await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
    async with running_worker(stage) as worker:  # its revision is neither
        await asyncio.wait_for(until_pinned(stage, request.rid), 10)
        await worker.until_idle()
        assert worker.engine.active == set()
    records = [stored.record for stored in await stage.records(request.rid)]
    assert [type(record) for record in records] == [Claim, Release, Claim, Release], records
    last = records[-1]
    assert isinstance(last, Release)
    assert (last.pinned, last.progressed, last.crashed) == (OLD, False, False)
    delivery = await stage.pull()
    result = await take_by(make_claimer(stage, "w", revision=OLD), request, delivery)
    assert isinstance(result, Taken)
    assert result.prefix.tokens == ids("ab")
    assert result.crashes == ()


async def until_pinned(stage: Stage, rid: str) -> None:
    async for _ in Looks():
        last = (await stage.records(rid))[-1].record
        if isinstance(last, Release) and last.pinned:
            return


@integration
@pytest.mark.parametrize("grace_s", [30.0, 0.0])
async def test_a_pin_that_was_told_is_waited_for_and_then_the_request_ends(
    stage: Stage, grace_s: float
) -> None:
    request, delivery = await make_begun(stage, "ab", Release(0, "dead", progressed=True))
    claimer = make_claimer(stage, "w", revision=NEW, revision_grace_s=grace_s)
    result = await take_by(claimer, request, delivery)
    assert isinstance(result, OtherWeights)
    await stage.append(request.rid, Release(result.epoch, "w", pinned=OLD))
    after = await take_by(
        make_claimer(stage, "v", revision=NEW, revision_grace_s=grace_s), request, delivery
    )
    fold = await stage.fold(request.rid)
    if grace_s:
        assert after == Postponed(2.0)
        assert fold.finish is None
        return
    assert isinstance(after, Over)
    end = (await stage.records(request.rid))[-1].record
    assert isinstance(end, End)
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.WEIGHTS_REPLACED
    assert fold.tokens == ids("ab")


@integration
async def test_who_has_its_weights_and_claims_it_in_that_moment_has_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, delivery = await make_begun(stage, "ab", Release(0, "dead", progressed=True))
    result = await take_by(make_claimer(stage, "w", revision=NEW), request, delivery)
    assert isinstance(result, OtherWeights)
    told = await stage.append(request.rid, Release(result.epoch, "w", pinned=OLD))
    js, clock = stage.cluster.js, stage.cluster.js.clock

    async def claimed_meanwhile(stream: str, max_age_s: float = 0.0) -> ClockReading:
        monkeypatch.setattr(js, "clock", clock)
        seq = delivery.request_seq
        claim = make_claim(request, "old", prev=told, request_seq=seq, revision=OLD)
        await stage.append(request.rid, claim)
        return await clock(stream, max_age_s)

    monkeypatch.setattr(js, "clock", claimed_meanwhile)
    with pytest.raises(CasConflict):
        await take_by(
            make_claimer(stage, "v", revision=NEW, revision_grace_s=0.0), request, delivery
        )
    assert (await stage.fold(request.rid)).finish is None


@integration
async def test_a_running_worker_ends_it_after_the_grace(stage: Stage) -> None:
    request, delivery = await make_begun(stage, "ab", Release(0, "dead", progressed=True))
    await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
    async with running_worker(stage, revision_grace_s=0.1) as worker:
        fold = await stage.until_finished(request.rid)
        await stage.until_queue_is_empty()
        await worker.until_idle()
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.WEIGHTS_REPLACED


@integration
async def test_the_tokens_of_a_released_request_start_no_run(stage: Stage) -> None:
    """The other side: with the right weights it is one run, from its prefix."""
    _, delivery = await make_begun(stage, "ab", Release(0, "dead", progressed=True))
    await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
    async with running_worker(stage) as worker:
        worker.worker._weights.checkpoint = make_weights(OLD).checkpoint
        run = await worker.engine.next_run()
        assert output_of(run) == ids("ab")


# The ownership log alone


def make_log(request: GenerateRequest, *records: OwnershipRecord) -> list[StoredRecord]:
    now = datetime.datetime.now(datetime.UTC)
    return [StoredRecord(seq, now, record) for seq, record in enumerate(records, start=1)]


def test_pins_come_from_claims_that_may_have_logged() -> None:
    request = make_request(revision="rev")
    old, new, unsaid = (make_claim(request, "w", revision=r) for r in (OLD, NEW, ""))
    nothing, something = Release(0, "w"), Release(0, "w", progressed=True)
    assert possible_pins(request, make_log(request, old)) == {OLD}
    assert possible_pins(request, make_log(request, old, nothing)) == set()
    assert possible_pins(request, make_log(request, old, something)) == {OLD}
    assert possible_pins(request, make_log(request, old, new)) == {OLD, NEW}
    assert possible_pins(request, make_log(request, unsaid)) == {"rev"}
    told = make_log(request, old, new, Release(0, "w", pinned=OLD))
    assert possible_pins(request, told) == {OLD}


def test_a_pin_is_waited_for_from_the_last_time_that_somebody_could_go_on() -> None:
    request = make_request()
    old, new = make_claim(request, "w", revision=OLD), make_claim(request, "w", revision=NEW)
    told = Release(0, "w", pinned=OLD)

    def reported_at(*records: OwnershipRecord) -> int | None:
        stored = recorded_pin(make_log(request, *records))
        return None if stored is None else stored.seq

    assert reported_at(old) is None
    assert reported_at(old, new, told) == 3
    assert reported_at(old, new, told, new, told) == 3
    assert reported_at(old, new, told, old) is None
    assert reported_at(old, new, told, old, new, told) == 6


@integration
async def test_whoever_has_its_weights_and_never_takes_it_does_not_keep_it_beyond_its_deadline(
    stage: Stage,
) -> None:
    request, delivery = await make_begun(stage, "ab")
    request = msgspec.structs.replace(request, deadline_s=5.0)
    await show_worker(stage, "other", OLD, WorkerState.READY)
    claimer = make_claimer(stage, "w", revision=NEW)
    assert await take_by(claimer, request, delivery) == Postponed(0.5)
    request = msgspec.structs.replace(request, deadline_s=0.001)
    assert isinstance(await take_by(claimer, request, delivery), Over)
    fold = await stage.fold(request.rid)
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.DEADLINE
