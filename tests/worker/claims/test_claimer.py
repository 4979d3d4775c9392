"""Who gets a delivered request, and with which tokens: against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.errors import BrokerUnavailable
from shared.liveness.heartbeat import Writability
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release
from shared.protocol.request import EmbedsDtype, GenerateRequest, ImageSpan, PromptEmbeds
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.protocol.text import Done
from shared.token_log.ownership import OwnershipLog
from tests.worker.checkpoints import make_weights
from tests.worker.io_stage import (
    POOL,
    REVISION,
    Stage,
    ids,
    make_adapters,
    make_claim,
    make_request,
)
from worker.claims.claim_flow import Claimant
from worker.claims.claim_steps import ClaimStep, Lost, Over, Postponed, Taken
from worker.claims.claimer import Claimer
from worker.claims.log_history import LogHistory
from worker.held.delivery import Delivery
from worker.held.held_request import LoggedOutput

pytestmark = pytest.mark.integration

ACK_WAIT_S = 8.0
STOP = Finish(FinishReason.STOP)


def make_claimer(
    stage: Stage,
    worker: str,
    heartbeats: Writability | None = None,
    revision: str = REVISION,
    revision_grace_s: float = 30.0,
    *,
    takes_parts: bool = True,
) -> Claimer:
    cluster = stage.cluster
    history = LogHistory(cluster, timeout_s=5.0)
    return Claimer(
        cluster,
        history,
        Claimant(
            worker,
            make_weights(revision),
            ACK_WAIT_S,
            revision_grace_s,
            takes=lambda request: takes_parts or not (request.images or request.embeds),
        ),
        make_adapters(cluster),
        heartbeats or Writability(),
    )


async def take_by(claimer: Claimer, request: GenerateRequest, delivery: Delivery) -> ClaimStep:
    return await claimer.take(claimer.flow(request, delivery))


def make_end(reason: FinishReason = FinishReason.CANCEL) -> End:
    return End(0, reason, by="frontend")


class ForgetfulOwnership:
    """Stores records but says nothing, `num_times`; then `meanwhile` may happen."""

    def __init__(self, inner: OwnershipLog, num_times: int = 1) -> None:
        self._inner = inner
        self._num_left = num_times
        self.appended: list[int] = []

    async def append(self, rid: str, record: OwnershipRecord) -> int:
        seq = await self._inner.append(rid, record)
        if self._num_left:
            self._num_left -= 1
            self.appended.append(seq)
            await self.meanwhile(rid, seq)
            raise BrokerUnavailable("the answer was lost")
        return seq

    async def meanwhile(self, rid: str, seq: int) -> None: ...

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


async def test_a_first_delivery_is_claimed_with_nothing_before_it(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    [stored] = await stage.records(request.rid)
    assert taken == Taken(stored.seq, LoggedOutput(), workers=("w",), is_acked_by_reader=True)
    assert isinstance(stored.record, Claim)
    assert (stored.record.worker, stored.record.request_seq) == ("w", delivery.request_seq)
    assert stored.record.ack_subject == delivery.ack_subject
    assert (stored.record.text, stored.record.reply) == (request.text, request.reply)


@pytest.mark.parametrize("num_delivered", [1, 2])
async def test_of_two_workers_that_race_exactly_one_holds_it(
    stage: Stage, num_delivered: int
) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    if num_delivered == 2:
        delivery = await stage.redeliver(delivery)
    await stage.show_heartbeat("a")
    await stage.show_heartbeat("b")
    results = await asyncio.gather(
        *(take_by(make_claimer(stage, worker), request, delivery) for worker in ("a", "b"))
    )
    [stored] = await stage.records(request.rid)
    assert isinstance(stored.record, Claim)
    winner = ("a", "b").index(stored.record.worker)
    assert results[winner] == Taken(
        stored.seq, LoggedOutput(), workers=(stored.record.worker,), is_acked_by_reader=True
    )
    assert results[1 - winner] == Postponed(ACK_WAIT_S / 2)


async def test_many_racing_workers_leave_one_chain(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    results = await asyncio.gather(
        *(take_by(make_claimer(stage, f"w{idx}"), request, delivery) for idx in range(8))
    )
    records = await stage.records(request.rid)  # nobody shows a heartbeat: each may take over
    taken = sorted(result.epoch for result in results if isinstance(result, Taken))
    assert [stored.seq for stored in records] == taken


async def test_a_claim_that_was_stored_although_the_answer_was_lost_is_ours(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    claimer = make_claimer(stage, "w")
    ownership = ForgetfulOwnership(stage.cluster.ownership)
    claimer._ownership = ownership  # type: ignore[assignment]
    taken = await take_by(claimer, request, delivery)
    assert taken == Taken(
        ownership.appended[0], LoggedOutput(), workers=("w",), is_acked_by_reader=True
    )
    assert len(await stage.records(request.rid)) == 1


async def test_a_takeover_whose_answer_was_lost_keeps_its_prefix(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    epoch = await stage.append(request.rid, make_claim(request, "dead"))
    await stage.write("dead", request.rid, epoch, 0, ids("abc"))
    claimer = make_claimer(stage, "w")
    ownership = ForgetfulOwnership(stage.cluster.ownership)
    claimer._ownership = ownership  # type: ignore[assignment]
    taken = await take_by(claimer, request, delivery)
    [before, ours] = await stage.records(request.rid)
    prefix = LoggedOutput(ids("abc"), progress_epoch=epoch)
    assert taken == Taken(
        ours.seq, prefix, before=before, workers=("dead", "w"), is_acked_by_reader=True
    )
    assert ownership.appended[0] == ours.seq


async def test_somebody_who_claimed_after_our_lost_answer_has_it(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)

    class Overtaken(ForgetfulOwnership):
        async def meanwhile(self, rid: str, seq: int) -> None:
            await stage.append(rid, make_claim(request, "other", prev=seq))

    claimer = make_claimer(stage, "w")
    claimer._ownership = Overtaken(stage.cluster.ownership)  # type: ignore[assignment]
    assert await take_by(claimer, request, delivery) == Lost()


async def test_a_release_after_our_lost_answer_is_not_ours_to_run(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)

    class Released(ForgetfulOwnership):
        async def meanwhile(self, rid: str, seq: int) -> None:
            other = await stage.append(rid, make_claim(request, "other", prev=seq))
            await stage.append(rid, Release(other, "other"))

    claimer = make_claimer(stage, "w")
    claimer._ownership = Released(stage.cluster.ownership)  # type: ignore[assignment]
    assert await take_by(claimer, request, delivery) == Lost()


async def test_no_answer_at_all_is_raised_and_not_retried_for_ever(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)

    class Away(ForgetfulOwnership):
        async def read(self, rid: str) -> object:
            raise BrokerUnavailable("away")

    claimer = make_claimer(stage, "w")
    claimer._ownership = Away(stage.cluster.ownership, num_times=100)  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable):
        await take_by(claimer, request, delivery)


async def test_a_second_message_of_a_request_is_a_duplicate(stage: Stage) -> None:
    request = make_request()
    first = await stage.submit_and_pull(request)
    assert isinstance(await take_by(make_claimer(stage, "a"), request, first), Taken)
    # As by two frontends, whose clients have the same key.
    await stage.submit(request, "batch")
    second = await stage.pull("batch")
    assert second.request_seq != first.request_seq
    assert await take_by(make_claimer(stage, "b"), request, second) == Over("it is a duplicate")
    assert len(await stage.records(request.rid)) == 1


@pytest.mark.parametrize("num_delivered", [1, 2])
async def test_what_was_ended_while_it_was_queued_is_over(stage: Stage, num_delivered: int) -> None:
    request = make_request()
    await stage.cluster.ownership.end(request.rid, make_end())
    delivery = await stage.submit_and_pull(request)
    if num_delivered == 2:
        delivery = await stage.redeliver(delivery)
    assert await take_by(make_claimer(stage, "w"), request, delivery) == Over("it was ended")
    assert len(await stage.records(request.rid)) == 1


async def test_what_was_ended_under_a_dead_worker_is_over(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    await stage.append(request.rid, make_claim(request, "dead"))
    await stage.cluster.ownership.end(request.rid, make_end())
    assert await take_by(make_claimer(stage, "w"), request, delivery) == Over("it was ended")


async def test_a_result_without_records_is_over(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    done = Done(request.rid, b"", "", STOP, request.reply)
    await stage.cluster.js.publish(stage.cluster.subjects.done(request.rid), encode(done))
    assert await take_by(make_claimer(stage, "w"), request, delivery) == Over("it has a result")
    assert await stage.records(request.rid) == []


async def test_a_living_holder_is_respected_once_a_claim(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    await stage.show_heartbeat("slow")
    first = await stage.append(request.rid, make_claim(request, "slow"))
    claimer = make_claimer(stage, "w")
    assert await take_by(claimer, request, delivery) == Postponed(ACK_WAIT_S / 2)
    assert len(await stage.records(request.rid)) == 1
    second = await stage.append(request.rid, make_claim(request, "slow", prev=first))
    assert await take_by(claimer, request, delivery) == Postponed(ACK_WAIT_S / 2)  # another claim
    taken = await take_by(claimer, request, delivery)
    assert isinstance(taken, Taken)
    assert taken.epoch > second


@pytest.mark.parametrize("is_released", [True, False])
async def test_nobody_waits_for_a_holder_that_is_gone(stage: Stage, is_released: bool) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    epoch = await stage.append(request.rid, make_claim(request, "other"))
    if is_released:  # it is alive, but hands over
        await stage.show_heartbeat("other")
        await stage.append(request.rid, Release(epoch, "other"))
    assert isinstance(await take_by(make_claimer(stage, "w"), request, delivery), Taken)


async def test_our_own_old_claim_is_not_waited_for(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    await stage.show_heartbeat("w")
    epoch = await stage.append(request.rid, make_claim(request, "w"))
    await stage.write("w", request.rid, epoch, 0, ids("ab"))
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    assert isinstance(taken, Taken)
    assert taken.prefix.tokens == ids("ab")


async def test_our_own_old_claim_tells_of_no_death(stage: Stage) -> None:
    """Our heartbeat may be absent while we live."""
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    await stage.append(request.rid, make_claim(request, "w"))
    assert isinstance(await take_by(make_claimer(stage, "w"), request, delivery), Taken)
    claim = (await stage.records(request.rid))[-1].record
    assert isinstance(claim, Claim)
    assert not claim.after_death


async def test_who_claims_to_run_alone_sees_what_came_in_between(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    claimer = make_claimer(stage, "w")
    flow = claimer.flow(request, delivery)
    taken = await claimer.take(flow)
    assert isinstance(taken, Taken)
    await stage.append(request.rid, make_claim(request, "other", prev=taken.epoch))
    assert await claimer.claim_alone(flow, flow.claim_alone()) == Lost()
    await stage.cluster.ownership.end(request.rid, make_end())
    assert await claimer.claim_alone(flow, flow.claim_alone()) == Over("it was ended")


async def test_a_heartbeat_that_could_not_be_written_is_no_death(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    await stage.append(request.rid, make_claim(request, "slow"))  # its heartbeat has expired
    heartbeats = Writability()
    heartbeats.note(is_written=False)
    claimer = make_claimer(stage, "w", heartbeats)
    assert await take_by(claimer, request, delivery) == Postponed(ACK_WAIT_S / 2)
    assert isinstance(await take_by(claimer, request, delivery), Taken)
    claim = (await stage.records(request.rid))[-1].record
    assert isinstance(claim, Claim)
    assert not claim.after_death


async def test_a_dead_workers_tokens_are_the_prefix(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    epoch = await stage.append(request.rid, make_claim(request, "dead"))
    await stage.write("dead", request.rid, epoch, 0, ids("hel"))
    await stage.write("dead", request.rid, epoch, 3, ids("lo"))
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    assert isinstance(taken, Taken)
    assert taken.prefix.tokens == ids("hello")
    claim = (await stage.records(request.rid))[-1]
    assert (claim.seq, claim.record.prev) == (taken.epoch, epoch)


async def test_a_first_delivery_with_a_past_is_found_out(stage: Stage) -> None:
    """After kill -9 of the server delivery counts start over."""
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    epoch = await stage.append(request.rid, make_claim(request, "dead"))
    await stage.write("dead", request.rid, epoch, 0, ids("hi"))
    taken = await take_by(make_claimer(stage, "w"), request, delivery)
    assert isinstance(taken, Taken)
    assert taken.prefix.tokens == ids("hi")


async def test_a_finish_before_our_claim_is_not_generated_again(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    epoch = await stage.append(request.rid, make_claim(request, "dead"))
    await stage.write("dead", request.rid, epoch, 0, ids("hi"), STOP)
    result = await take_by(make_claimer(stage, "w"), request, delivery)
    assert result == Over("its finish is in the log")


async def test_a_finish_behind_our_claim_does_not_count(stage: Stage) -> None:
    request = make_request()
    delivery = await stage.redeliver(await stage.submit_and_pull(request))
    epoch = await stage.append(request.rid, make_claim(request, "slow"))
    await stage.write("slow", request.rid, epoch, 0, ids("h"))

    class Late(ForgetfulOwnership):
        async def meanwhile(self, rid: str, seq: int) -> None:
            await stage.write("slow", rid, epoch, 1, ids("i"), STOP)

    claimer = make_claimer(stage, "w")
    claimer._ownership = Late(stage.cluster.ownership)  # type: ignore[assignment]
    taken = await take_by(claimer, request, delivery)
    assert isinstance(taken, Taken)
    assert taken.prefix.tokens == ids("h")
    assert (await stage.fold(request.rid)).finish is None


async def take_aged(stage: Stage, request: GenerateRequest) -> ClaimStep:
    """Take a request that has waited a while."""
    delivery = await stage.submit_and_pull(request)
    await asyncio.sleep(0.3)
    return await take_by(make_claimer(stage, "w"), request, delivery)


async def test_a_request_whose_deadline_has_passed_is_ended(stage: Stage) -> None:
    request = make_request(deadline_s=0.2)
    assert await take_aged(stage, request) == Over("its deadline has passed")
    fold = await stage.fold(request.rid)
    assert fold.finish == Finish(FinishReason.DEADLINE)
    assert [type(stored.record) for stored in await stage.records(request.rid)] == [Claim, End]


async def test_a_request_within_its_deadline_is_taken(stage: Stage) -> None:
    request = make_request(deadline_s=30.0)
    assert isinstance(await take_aged(stage, request), Taken)


@pytest.mark.parametrize("part", ["images", "embeds"])
async def test_what_is_no_token_waits_for_a_worker_that_takes_it(stage: Stage, part: str) -> None:
    """As long as one is there: else its engine may say why it takes none."""
    parts: dict[str, Any] = {
        "images": (ImageSpan(0, 2, b"digest"),),
        "embeds": PromptEmbeds(2, EmbedsDtype.FLOAT16, b"digest"),
    }
    request = make_request(**{part: parts[part]})
    delivery = await stage.submit_and_pull(request)
    workers = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    claimer = make_claimer(stage, "w", takes_parts=False)
    for is_blind in (False, True):
        lacks: dict[str, Any] = {f"takes_no_{part}": is_blind}
        card = WorkerCard("v", POOL, "m", REVISION, WorkerState.READY, **lacks)
        await workers.put(f"{POOL}.v", encode(card))
        step = await take_by(claimer, request, delivery)
        assert isinstance(step, Taken if is_blind else Postponed)
    other = make_request()
    delivery = await stage.submit_and_pull(other)
    assert isinstance(await take_by(claimer, other, delivery), Taken)
