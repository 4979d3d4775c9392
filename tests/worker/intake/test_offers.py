"""Requests go to the worker that has their prefix, and no promise is given up for it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from shared.admin.control import FlushCache
from shared.broker.kv_bucket import KvEntry
from shared.nats_client.connection import round_trip
from shared.protocol.codec import decode, encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release
from shared.protocol.notices import Offer, OfferAnswer, OfferVerdict
from shared.protocol.prefix_chain import BLOCK_TOKENS
from shared.protocol.request import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from shared.subjects import Lane
from tests.eventually import PATIENCE_S, eventually
from tests.worker.io_stage import POOL, Stage, make_reply, make_request
from tests.worker.running_worker import RunningWorker, running_worker
from worker.affinity import pool_roles
from worker.engine_link.engine_messages import PagePeer
from worker.held.delivery import Delivery

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)
PROMPT = list(range(6 * BLOCK_TOKENS))
ANSWER_S = "worker.intake.offer_maker._ANSWER_S"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is silent only because the machine is busy."""
    monkeypatch.setattr(ANSWER_S, 60.0)


def make_turn(num_more: int = 10, **changes: Any) -> GenerateRequest:
    """A request whose prompt begins with PROMPT."""
    prompt_ids = PROMPT + [5] * num_more
    request = make_request(prompt_ids=pack_token_ids(prompt_ids), **changes)
    return make_request(
        request.rid,
        prompt_ids=request.prompt_ids,
        reply=make_reply(request.rid, len(prompt_ids)),
        **changes,
    )


@asynccontextmanager
async def two_workers(
    stage: Stage, **holder_config: Any
) -> AsyncIterator[tuple[RunningWorker, RunningWorker]]:
    """One that has computed PROMPT and pulls no more, one that pulls and knows of it."""
    folder = holder_config.get("kv_disk_dir")
    async with (
        running_worker(stage, is_ready=False, **holder_config) as holder,
        running_worker(stage, is_ready=False, kv_disk_dir=folder) as puller,
    ):
        holder.engine.become_ready(pages="there-mark" if folder else "")
        await stage.submit(make_turn())
        run = await holder.engine.next_run()
        holder.engine.emit(run.run_id, [1, 2], STOP)
        await holder.until_idle()
        await holder.runner._stop_pulling()
        await until_known(puller, make_turn())
        puller.engine.become_ready(pages="here-mark" if folder else "")
        yield holder, puller


async def until_known(puller: RunningWorker, request: GenerateRequest) -> None:
    """It knows whom to offer the request to; a card alone may tell of a worker without prefixes."""
    prefixes = puller.runner.parts.prefixes
    chain = prefixes.chain(request)
    await eventually(lambda: prefixes.place_for(request, chain) is not None)


async def finish(worker: RunningWorker) -> None:
    """The next run of this worker, to its end."""
    run = await worker.engine.next_run()
    worker.engine.emit(run.run_id, [3, 4], STOP)


async def num_redelivered(stage: Stage) -> int:
    subjects = stage.cluster.subjects
    name = f"{subjects.requests_stream}.{subjects.consumer(POOL, 'interactive')}"
    info = await stage.cluster.js.api(f"CONSUMER.INFO.{name}")
    return int(info["num_redelivered"])


async def assert_answered_once(stage: Stage, request: GenerateRequest, by: RunningWorker) -> None:
    """One claim, one finish, out of the queue, and never delivered twice."""
    fold = await stage.until_finished(request.rid)
    assert (fold.tokens, fold.finish) == ([3, 4], STOP)
    await stage.until_queue_is_empty()
    records = [stored.record for stored in await stage.records(request.rid)]
    assert [record.worker for record in records if isinstance(record, Claim)] == [by.id]
    assert len(records) == 1
    assert await num_redelivered(stage) == 0


async def test_the_holder_of_a_prefix_gets_the_request(stage: Stage) -> None:
    async with two_workers(stage) as (holder, puller):
        request = make_turn()
        await stage.submit(request)
        await finish(holder)
        await assert_answered_once(stage, request, by=holder)
        assert puller.engine.runs == {}
        assert (puller.count("offers.made"), puller.count("offers.taken")) == (1, 1)
        assert holder.count("offers.affinity_tokens") == len(PROMPT)


async def test_what_the_answer_was_counts_as_prefix_too(stage: Stage) -> None:
    """The first turn is shorter than a block, the answer is not."""
    answer = list(range(4 * BLOCK_TOKENS))
    async with (
        running_worker(stage) as holder,
        running_worker(stage, is_ready=False) as puller,
    ):
        await stage.submit(make_request())
        run = await holder.engine.next_run()
        holder.engine.emit(run.run_id, answer, STOP)
        await holder.until_idle()
        await holder.runner._stop_pulling()
        request = make_request(prompt_ids=pack_token_ids([1, 2, 3, *answer, 9]))
        await until_known(puller, request)
        puller.engine.become_ready()
        await stage.submit(request)
        await finish(holder)
        await stage.until_queue_is_empty()
        assert puller.engine.runs == {}


async def test_a_request_with_another_salt_is_not_offered(stage: Stage) -> None:
    async with two_workers(stage) as (_, puller):
        request = make_turn(cache_salt="mine")
        await stage.submit(request)
        await finish(puller)
        await assert_answered_once(stage, request, by=puller)
        assert puller.count("offers.made") == 0


async def test_who_has_the_prefix_itself_offers_nothing(stage: Stage) -> None:
    async with two_workers(stage) as (_, puller):
        for request in (make_turn(cache_salt="a"), make_turn(cache_salt="a")):
            await stage.submit(request)
            await finish(puller)
            await assert_answered_once(stage, request, by=puller)
        assert puller.count("offers.made") == 0


async def test_without_affinity_nothing_is_told_and_nothing_offered(stage: Stage) -> None:
    async with (
        running_worker(stage, prefix_affinity=False) as first,
        running_worker(stage, is_ready=False) as second,
    ):
        await stage.submit(make_turn())
        await finish(first)
        await first.until_idle()
        await first.runner._stop_pulling()
        await second.runner.claims.prefix_reporter.look()
        assert first.worker._worker_card().prefix_hashes == b""
        assert not second.runner.parts.prefixes.has_others
        second.engine.become_ready()
        request = make_turn()
        await stage.submit(request)
        await finish(second)
        await assert_answered_once(stage, request, by=second)


async def test_who_speaks_first_while_the_cards_are_read_is_remembered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = [b"0123456789abcdef"]
    async with running_worker(stage) as worker:
        prefixes = worker.runner.parts.prefixes
        reporter = worker.runner.claims.prefix_reporter
        read = reporter._workers.entries

        async def read_and_hear() -> list[KvEntry]:
            entries = await read()
            prefixes.learn("new", hashes)
            return entries

        prefixes.learn("dead", hashes)
        monkeypatch.setattr(reporter._workers, "entries", read_and_hear)
        await reporter.look()
        assert prefixes.others == {"new"}


async def test_a_worker_that_starts_later_learns_the_prefixes_from_the_cards(
    stage: Stage,
) -> None:
    async with running_worker(stage) as holder:
        await stage.submit(make_turn())
        await finish(holder)
        await holder.until_idle()
        await holder.runner._stop_pulling()
        await holder.worker._heartbeat.beat()
        async with running_worker(stage) as puller:
            request = make_turn()
            await until_known(puller, request)
            await stage.submit(request)
            await finish(holder)
            await assert_answered_once(stage, request, by=holder)


async def test_a_worker_whose_engine_keeps_no_prefix_tells_of_none(stage: Stage) -> None:
    async with running_worker(stage, is_ready=False) as holder, running_worker(stage) as other:
        await other.runner._stop_pulling()
        holder.engine.become_ready(has_prefixes=False)
        request = make_turn()
        await stage.submit(request)
        await finish(holder)
        await holder.until_idle()
        await holder.worker._heartbeat.beat()
        await other.runner.claims.prefix_reporter.look()
        assert not other.runner.parts.prefixes.has_others
        assert not holder.runner.parts.prefixes.is_open


async def test_a_session_follows_its_worker_with_a_prompt_from_the_object_store(
    stage: Stage,
) -> None:
    """Nobody can tell its prefix before it has been fetched."""
    async with (
        running_worker(stage) as home,
        running_worker(stage, is_ready=False) as puller,
    ):
        await stage.submit(make_turn(session="s"))
        await finish(home)
        await home.until_idle()
        await home.runner._stop_pulling()
        turn = make_turn(40, session="s")
        request = msgspec.structs.replace(turn, prompt_ids=b"", prompt_object="prompt-1")
        await until_known(puller, request)
        puller.engine.become_ready()
        await home.runner.claims.taker._catalog.put_object("prompt-1", turn.prompt_ids)
        await stage.submit(request)
        run = await home.engine.next_run()
        assert run.prompt_ids == turn.prompt_ids
        home.engine.emit(run.run_id, [3, 4], STOP)
        await assert_answered_once(stage, request, by=home)
        assert (puller.engine.runs, puller.count("offers.taken")) == ({}, 1)


# Refusals


async def test_a_holder_without_a_slot_refuses_and_sends_its_pages(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_roles, "_LOOK_S", 0.05)
    config = {"kv_disk_dir": str(tmp_path), "kv_transfer_bind": "127.0.0.1:0", "max_running": 1}
    async with two_workers(stage, **config) as (holder, puller):
        peers, server = puller.runner.parts.peers, holder.runner.parts.peers.server
        assert server is not None
        await eventually(lambda: peers.is_there_any)
        busy = make_turn()
        await stage.submit(busy)
        await holder.engine.next_run()
        request = make_turn(200)
        await stage.submit(request)
        run = await puller.engine.next_run()
        assert run.options.peer == PagePeer(str(server.endpoint), server.key)
        puller.engine.emit(run.run_id, [3, 4], STOP)
        await eventually(lambda: not puller.held)
        assert puller.count("offers.refused") == 1
        assert len(await stage.records(request.rid)) == 1
        assert (await stage.fold(request.rid)).finish == STOP


async def test_a_holder_that_has_more_to_do_than_the_prefix_saves_refuses(stage: Stage) -> None:
    async with two_workers(stage, max_running=30) as (holder, puller):
        await take_another(holder, num_tokens=len(PROMPT))
        first, second = make_turn(), make_turn(200)
        await stage.submit(first)
        await finish(holder)  # so much waiting is just as quick as computing the prefix again
        await stage.until_finished(first.rid)
        await take_another(holder, num_tokens=1)
        await stage.submit(second)
        await finish(puller)
        await eventually(lambda: not puller.held)
        assert puller.count("offers.refused") == 1
        assert len(await stage.records(second.rid)) == 1


async def take_another(worker: RunningWorker, num_tokens: int) -> None:
    """It has something else to prefill."""
    rid = make_request().rid
    prompt_ids = pack_token_ids([9] * num_tokens)
    request = make_request(rid, prompt_ids=prompt_ids, reply=make_reply(rid, num_tokens))
    delivery = Delivery(
        data=encode(request),
        ack_subject="ack.none",
        num_delivered=1,
        request_seq=1,
        queued_at=datetime.datetime.now(datetime.UTC),
        rid=rid,
        lane=Lane("interactive"),
        num_pending=0,
    )
    assert await worker.runner.claims.taker.take(request, delivery)
    await worker.engine.next_run()


async def test_a_holder_that_has_lost_the_prefix_refuses_and_is_not_asked_again(
    stage: Stage,
) -> None:
    async with two_workers(stage) as (holder, puller):
        holder.runner.parts.prefixes.close()
        for salt in ("", "another"):
            request = make_turn(cache_salt=salt)
            await stage.submit(request)
            await finish(puller)
            await assert_answered_once(stage, request, by=puller)
        assert (puller.count("offers.made"), puller.count("offers.refused")) == (1, 1)


async def test_a_draining_holder_refuses(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_workers(stage) as (holder, puller):
        holder.runner.parts.capacity.close()
        request = make_turn()
        await stage.submit(request)
        await finish(puller)
        await assert_answered_once(stage, request, by=puller)
        assert not puller.runner.parts.prefixes.has_others


async def test_unreadable_offers_are_passed_over(stage: Stage) -> None:
    async with two_workers(stage) as (holder, _):
        subject = stage.cluster.subjects.offer(POOL, holder.id)
        bad = [b"\xc1", encode(Offer(b"", "no.ack", "", 0, 0, 0)), encode(make_turn())]
        for payload in bad:
            await stage.cluster.nc.publish(subject, payload)
        request = make_turn()
        await stage.submit(request)
        await finish(holder)
        await assert_answered_once(stage, request, by=holder)


# Silence


async def test_a_dead_holder_costs_nothing(stage: Stage) -> None:
    async with two_workers(stage) as (holder, puller):
        await holder.kill()
        assert await round_trip(holder.cluster.nc)  # the server knows that nobody listens
        request = make_turn()
        await stage.submit(request)
        await finish(puller)
        await assert_answered_once(stage, request, by=puller)
        assert puller.count("offers.unanswered") == 0


async def test_a_holder_that_answers_too_late_loses_in_silence(
    stage: Stage, acks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up and claims what the puller runs already."""
    monkeypatch.setattr(ANSWER_S, 0.05)
    async with two_workers(stage) as (holder, puller):
        may_answer = asyncio.Event()
        answer = holder.runner.claims.offer_handler.answer

        async def answer_late(message: Msg) -> None:
            await may_answer.wait()
            await answer(message)

        monkeypatch.setattr(holder.runner.claims.offer_handler, "answer", answer_late)
        request = make_turn()
        await stage.submit(request)
        run = await puller.engine.next_run()
        await stage.cluster.ownership.read(request.rid)
        await eventually(lambda: puller.held[0].epoch > 0)
        may_answer.set()
        early = await holder.engine.next_run()
        await eventually(lambda: holder.engine.aborted == [early.run_id])
        await holder.until_idle()
        puller.engine.emit(run.run_id, [3, 4], STOP)
        await assert_answered_once(stage, request, by=puller)
        assert acks.count(b"+ACK") == 2  # of the first turn, and of this one
        assert not any(payload.startswith(b"-NAK") for payload in acks)
        assert puller.count("offers.unanswered") == 1


async def test_a_puller_that_does_not_hear_the_answer_loses_in_silence(
    stage: Stage, acks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder has claimed, and its answer is spoilt on the way."""
    async with two_workers(stage) as (holder, puller):
        respond = Msg.respond

        async def respond_unreadably(message: Msg, data: bytes) -> None:
            await respond(message, b"\xc1")

        monkeypatch.setattr(Msg, "respond", respond_unreadably)
        request = make_turn()
        await stage.submit(request)
        run = await holder.engine.next_run()
        early = await puller.engine.next_run()
        await eventually(lambda: puller.engine.aborted == [early.run_id])
        await puller.until_idle()
        holder.engine.emit(run.run_id, [3, 4], STOP)
        await assert_answered_once(stage, request, by=holder)
        assert acks.count(b"+ACK") == 2  # of the first turn, and of this one
        assert not any(payload.startswith(b"-NAK") for payload in acks)


async def test_a_holder_that_dies_after_its_claim_loses_nothing(
    stage: Stage,
) -> None:
    async with two_workers(stage) as (holder, puller):
        request = make_turn()
        await stage.submit(request)
        await holder.engine.next_run()
        await eventually(lambda: puller.count("offers.taken") == 1)
        await holder.kill()
        [claim] = await stage.records(request.rid)
        assert isinstance(claim.record, Claim)
        await stage.cluster.nc.publish(claim.record.ack_subject, b"-NAK")  # as detok does
        await finish(puller)
        assert (await stage.until_finished(request.rid)).tokens == [3, 4]
        await stage.until_queue_is_empty()


async def test_a_holder_that_drains_while_it_claims_gives_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_workers(stage) as (holder, puller):
        is_claimed, may_return = asyncio.Event(), asyncio.Event()
        take = holder.runner.claims.taker._claimer.take

        async def take_slowly(*args: Any) -> object:
            result = await take(*args)
            is_claimed.set()
            await may_return.wait()
            return result

        monkeypatch.setattr(holder.runner.claims.taker._claimer, "take", take_slowly)
        request = make_turn()
        await stage.submit(request)
        await is_claimed.wait()
        stopping = asyncio.create_task(holder.stop())
        await eventually(lambda: holder.runner.parts.capacity.is_closed)
        may_return.set()
        await stopping
        await finish(puller)
        assert (await stage.until_finished(request.rid)).tokens == [3, 4]
        await stage.until_queue_is_empty()
        kinds = [type(stored.record) for stored in await stage.records(request.rid)]
        assert kinds == [Claim, Release, Claim]


async def test_a_puller_that_drains_while_it_asks_gives_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ANSWER_S, 0.05)
    async with two_workers(stage) as (holder, puller):
        is_asked = asyncio.Event()

        async def keep_silent(message: Msg) -> None:
            is_asked.set()

        monkeypatch.setattr(holder.runner.claims.offer_handler, "answer", keep_silent)
        request = make_turn()
        await stage.submit(request)
        await is_asked.wait()
        await puller.stop()
        puller.assert_nothing_held()
        delivery = await stage.pull()
        assert delivery.rid == request.rid
        assert (await stage.fold(request.rid)).tokens == []


class LateRefusal:
    """In place of a holder's answer to an offer: when the test says so, with its words."""

    def __init__(self, words: bytes = encode(OfferAnswer(OfferVerdict.FULL))) -> None:
        self._words = words
        self._may_answer = asyncio.Event()
        self._asked: asyncio.Queue[Offer] = asyncio.Queue()

    async def answer(self, message: Msg) -> None:
        self._asked.put_nowait(decode(Offer, message.data))
        await self._may_answer.wait()
        await message.respond(self._words)

    async def asked(self) -> Offer:
        async with asyncio.timeout(PATIENCE_S):
            return await self._asked.get()

    def tell(self) -> None:
        self._may_answer.set()


async def test_what_is_delivered_again_while_a_holder_is_asked_runs_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = LateRefusal()
    async with two_workers(stage) as (holder, puller):
        monkeypatch.setattr(holder.runner.claims.offer_handler, "answer", refusal.answer)
        request = make_turn()
        await stage.submit(request)
        offer = await refusal.asked()
        await stage.cluster.nc.publish(offer.ack_subject, b"-NAK")
        run = await puller.engine.next_run()
        await eventually(lambda: puller.held[0].epoch > 0)
        refusal.tell()
        await eventually(lambda: puller.count("offers.refused") == 1)
        puller.engine.emit(run.run_id, [3, 4], STOP)
        assert (await stage.until_finished(request.rid)).tokens == [3, 4]
        await stage.until_queue_is_empty()
        await puller.until_idle()
        assert list(puller.engine.runs) == [run.run_id]
    assert len(await stage.records(request.rid)) == 1


@pytest.mark.parametrize("is_heard", [True, False])
async def test_a_puller_that_is_paused_while_it_asks_takes_nothing(
    stage: Stage, acks: list[bytes], monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    """What another worker may have claimed under the same delivery is not given back."""
    refusal = LateRefusal() if is_heard else LateRefusal(b"\xc1")
    async with two_workers(stage) as (holder, puller):
        monkeypatch.setattr(holder.runner.claims.offer_handler, "answer", refusal.answer)
        request = make_turn()
        await stage.submit(request)
        await refusal.asked()
        await puller.runner.pause()
        refusal.tell()
        told = "offers.refused" if is_heard else "offers.unanswered"
        await eventually(lambda: puller.count(told) == 1)
        await round_trip(puller.cluster.nc)
        await round_trip(stage.cluster.nc)
        puller.assert_nothing_held()
        assert puller.engine.runs == {}
        assert [ack for ack in acks if ack != b"+ACK"] == ([b"-NAK"] if is_heard else [])
    assert await stage.records(request.rid) == []


async def test_who_is_offered_what_it_cannot_read_or_may_not_take_says_so(stage: Stage) -> None:
    other, ours = make_turn(tokenizer_hash="other"), make_turn()
    async with running_worker(stage) as worker:
        await worker.runner.pause()
        for request in (other, ours):
            await stage.submit(request)
            delivery = dataclasses.replace(await stage.pull(), is_shared=True)
            chain = worker.runner.parts.prefixes.chain(request)
            if request is other:
                worker.runner.unpause()
            assert not await worker.runner.claims.intake.take_offered(request, delivery, chain)
            await worker.runner.pause()
        worker.assert_nothing_held()
        assert worker.engine.runs == {}
    assert [await stage.records(request.rid) for request in (other, ours)] == [[], []]


async def test_who_is_offered_what_it_runs_has_taken_it(stage: Stage) -> None:
    """The puller has it by a redelivery, and does not know whose it is."""
    request = make_turn()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: worker.held[0].epoch > 0)
        held = worker.held[0]
        delivery = dataclasses.replace(held.delivery, num_delivered=2, is_shared=True)
        chain = worker.runner.parts.prefixes.chain(request)
        assert await worker.runner.claims.intake.take_offered(request, delivery, chain)
        assert worker.held == [held]
        worker.engine.emit(run.run_id, [3, 4], STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert list(worker.engine.runs) == [run.run_id]


async def test_a_flushed_holder_refuses(stage: Stage) -> None:
    async with two_workers(stage) as (holder, puller):
        await stage.tell(FlushCache())
        await eventually(lambda: not len(holder.runner.parts.prefixes.own))
        request = make_turn()
        await stage.submit(request)
        await finish(puller)
        await assert_answered_once(stage, request, by=puller)


async def test_a_request_for_the_logprobs_of_its_prompt_is_not_offered(stage: Stage) -> None:
    sampling = SamplingParams(max_tokens=10, seed=1, prompt_logprobs=0)
    async with two_workers(stage) as (_, puller):
        request = make_turn(sampling=sampling)
        await stage.submit(request)
        await finish(puller)
        await assert_answered_once(stage, request, by=puller)
        assert puller.count("offers.made") == 0
