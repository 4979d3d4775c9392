"""One request after the other through a worker with a scripted engine, against a real server."""

from __future__ import annotations

import asyncio
import datetime

import msgspec
import pytest
from nats.js.errors import ObjectNotFoundError

from shared.nats_client.connection import round_trip
from shared.protocol.codec import encode
from shared.protocol.finish import Beam, Finish, FinishReason
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.notices import Cancel, Fenced
from shared.protocol.prompt_object import PromptData, without_large_parts
from shared.protocol.reply import TextParams
from shared.protocol.request import (
    FEATURE_LEVEL,
    EmbedsDtype,
    GenerateRequest,
    ImageSpan,
    KeepPrefix,
    PromptEmbeds,
)
from shared.protocol.role_cards import LevelRecord, WorkDone
from shared.protocol.sampling import BeamParams, PoolingKind, PoolingParams, SamplingParams
from shared.protocol.token_ids import pack_token_ids
from tests.eventually import eventually, eventually_async
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err
from tests.worker.io_stage import POOL, Stage, ids, make_claim, make_request, open_stage
from tests.worker.running_worker import output_of, running_worker
from worker.engine_link.engine_messages import RunEmbeds, RunImage
from worker.held.held_request import HoldState

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)
LENGTH = Finish(FinishReason.LENGTH)


async def notify(stage: Stage, notice: Cancel | Fenced) -> None:
    await stage.cluster.nc.publish(stage.cluster.subjects.control(POOL), encode(notice))


def make_end() -> End:
    return End(0, FinishReason.CANCEL, by="frontend")


# The usual way


async def test_the_log_holds_what_the_engine_gave(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert (run.prompt_ids, output_of(run)) == (request.prompt_ids, [])
        assert (run.options.sampling, run.options.priority) == (request.sampling, 0)
        for char in "hello":
            worker.engine.emit(run.run_id, ids(char))
        worker.engine.emit(run.run_id, ids("!"), LENGTH)
        fold = await stage.until_finished(request.rid)
        assert (fold.tokens, fold.finish) == (ids("hello!"), LENGTH)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.engine.aborted == []
    [claim] = await stage.records(request.rid)
    assert isinstance(claim.record, Claim)


async def test_work_is_counted_once_prefill_with_the_first_output(stage: Stage) -> None:
    request, embedding = make_request(), make_request(pooling=PoolingParams(PoolingKind.MEAN))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert worker.runner.work_done == WorkDone()
        worker.engine.emit(run.run_id, ids("ab"))
        worker.engine.emit(run.run_id, ids("c"))
        assert worker.runner.work_done == WorkDone(num_tokens=3 + 3, num_generated=3)
        cached = Finish(FinishReason.LENGTH, num_cached_tokens=2)
        worker.engine.emit(run.run_id, ids("d"), cached)
        await stage.submit(embedding)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, [], STOP)
        await stage.until_queue_is_empty()
        assert worker.runner.work_done == WorkDone(
            num_tokens=3 + 4 + 3, num_finished=2, num_finished_tokens=1 + 4 + 3, num_generated=4
        )


async def test_requests_with_different_salts_are_told_apart(stage: Stage) -> None:
    salts = ["", "a", "a", "b"]
    async with running_worker(stage) as worker:
        for salt in salts:
            await stage.submit(make_request(cache_salt=salt))
        runs = [await worker.engine.next_run() for _ in salts]
        namespaces = [run.options.namespace for run in runs]
    assert namespaces[1] == namespaces[2]
    assert len(set(namespaces)) == 3


async def test_many_requests_at_once_keep_their_tokens_apart(stage: Stage) -> None:
    requests = [make_request() for _ in range(40)]
    async with running_worker(stage, max_running=40) as worker:
        for request in requests:
            await stage.submit(request)
        runs = [await worker.engine.next_run() for _ in requests]
        for position in range(10):
            for idx, run in enumerate(runs):
                finish = STOP if position == 9 else None
                worker.engine.emit(run.run_id, [(idx + position) % 29], finish)
            await asyncio.sleep(0)
        await stage.until_queue_is_empty()
        await worker.until_idle()
    for request in requests:
        fold = await stage.fold(request.rid)
        assert fold.finish == STOP
        assert len(fold.tokens) == 10
        assert fold.tokens == [(fold.tokens[0] + position) % 29 for position in range(10)]


async def test_a_finish_without_tokens_is_logged(stage: Stage) -> None:
    refused = Finish(FinishReason.ERROR, message="the prompt is empty")
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, [], refused)
        assert (await stage.until_finished(request.rid)).finish == refused
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_what_the_engine_makes_before_the_claim_is_stored_is_logged_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        may_claim = asyncio.Event()
        take = worker.runner.claims.taker._claimer.take

        async def take_late(*args: object) -> object:
            await may_claim.wait()
            return await take(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(worker.runner.claims.taker._claimer, "take", take_late)
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        worker.engine.emit(run.run_id, ids("c"), STOP)
        assert await stage.entries(request.rid) == []
        may_claim.set()
        fold = await stage.until_finished(request.rid)
        assert (fold.tokens, fold.finish) == (ids("abc"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_tokens_wait_for_no_timer_on_their_way_to_the_log(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that were made before the claim was stored, nor those of a step."""
    for timer in ("runs.token_log", "capacity.ack_heartbeat"):
        monkeypatch.setattr(f"worker.{timer}._TICK_S", 3600.0)
    request = make_request()
    async with (
        open_stage(nats_server.url, ack_wait_s=120.0) as stage,
        running_worker(stage) as worker,
    ):
        claimer, may_claim = worker.runner.claims.taker._claimer, asyncio.Event()
        take = claimer.take

        async def take_late(*args: object) -> object:
            await may_claim.wait()
            return await take(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(claimer, "take", take_late)
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        may_claim.set()
        await stage.until_logged(request.rid, 2)
        worker.engine.emit(run.run_id, ids("c"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("abc")
        await worker.until_idle()


async def test_a_finish_tells_how_the_run_went(stage: Stage) -> None:
    """Who had it before, and for how long the engine let it wait: by the engine's own clock."""
    request = make_request()
    epoch = await stage.append(request.rid, make_claim(request, "dead", request_seq=1))
    await stage.write("dead", request.rid, epoch, 0, ids("ab"))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        early = await worker.engine.next_run()
        run = await worker.engine.next_run()
        worker.engine.begin(early.run_id, queue_s=99.0)  # aborted, and of no interest
        worker.engine.begin(run.run_id, queue_s=0.001)
        worker.engine.begin(run.run_id, queue_s=7.0)  # after a retraction
        worker.engine.emit(run.run_id, ids("c"))
        worker.engine.emit(run.run_id, ids("de"), STOP)
        await stage.until_finished(request.rid)
        facts = stage.runs[request.rid]
        assert facts is not None
        assert facts.workers == ("dead", worker.id)
        assert facts.queue_s == 0.001
        assert facts.prefill_s >= 0
        assert facts.decode_s >= 0
        await worker.until_idle()
    told = worker.registry.get_sample_value
    assert told("jetflock_request_queue_time_seconds_sum", {"model_name": "m"}) == 0.001
    assert told("jetflock_request_generation_tokens_sum", {"model_name": "m"}) == 5
    assert told("jetflock_iteration_tokens_sum", {"model_name": "m"}) == 3
    stops = {"model_name": "m", "finished_reason": "stop"}
    assert told("jetflock_request_success_total", stops) == 1


# Taking


async def test_a_run_that_started_too_early_is_aborted_when_the_claim_is_refused(
    stage: Stage,
) -> None:
    request = make_request()
    await stage.cluster.ownership.end(request.rid, make_end())
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.engine.aborted == [run.run_id]
        worker.engine.emit(run.run_id, ids("ab"), STOP)  # it had not heard of the abort
        await worker.runner.parts.token_log.wait_flushed(1)
    assert await stage.entries(request.rid) == []


async def test_a_copy_of_what_has_finished_starts_nothing(stage: Stage) -> None:
    """A frontend had no answer and sent it again, when the first copy had left the queue."""
    request = make_request()
    async with running_worker(stage) as first:
        await stage.submit(request)
        run = await first.engine.next_run()
        first.engine.emit(run.run_id, ids("ab"), STOP)
        await stage.until_queue_is_empty()
    entries, records = await stage.entries(request.rid), await stage.records(request.rid)
    copy = msgspec.structs.replace(request, may_be_copy=True)
    async with running_worker(stage) as second:
        await stage.submit(copy)
        await stage.submit(copy, "batch")
        await stage.until_queue_is_empty()
        await second.until_idle()
        assert second.engine.runs == {}
        done = msgspec.structs.replace(second.runner.work_done, num_redelivered=0)
        assert done == WorkDone(), "one of them may have waited for the other"
    assert await stage.entries(request.rid) == entries
    assert await stage.records(request.rid) == records


async def test_a_copy_that_is_the_only_one_runs(stage: Stage) -> None:
    request = make_request(may_be_copy=True)
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("ab")
        await stage.until_queue_is_empty()


async def test_a_run_that_started_too_early_starts_again_behind_the_prefix(stage: Stage) -> None:
    """The delivery says that it is the first, but there is a past: after kill -9 of the server."""
    request = make_request(text=TextParams(stop=("cd",)))
    seq = 1
    epoch = await stage.append(request.rid, make_claim(request, "dead", request_seq=seq))
    await stage.write("dead", request.rid, epoch, 0, ids("dabc"))
    async with running_worker(stage) as worker:
        assert await stage.submit(request) == seq
        early = await worker.engine.next_run()
        worker.engine.emit(early.run_id, ids("xyc"), STOP)  # which with the log's "d" were a stop
        run = await worker.engine.next_run()
        assert output_of(run) == ids("dabc")
        worker.engine.emit(run.run_id, ids("d"))
        fold = await stage.until_finished(request.rid)
        assert fold.tokens == ids("dabcd")
        assert fold.finish == Finish(FinishReason.STOP, matched="cd")
        await worker.until_idle()


async def test_a_redelivered_request_goes_on_from_its_tokens_and_restates_them(
    stage: Stage,
) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    claim = make_claim(request, "dead", request_seq=delivery.request_seq)
    epoch = await stage.append(request.rid, claim)
    await stage.write("dead", request.rid, epoch, 0, ids("hel"))
    async with running_worker(stage) as worker:
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        run = await worker.engine.next_run()
        assert output_of(run) == ids("hel")
        worker.engine.emit(run.run_id, ids("lo"), STOP)
        fold = await stage.until_finished(request.rid)
        assert (fold.tokens, fold.finish) == (ids("hello"), STOP)
        await worker.until_idle()
    mine = [entry for _, entry in await stage.entries(request.rid) if entry.epoch != epoch]
    assert (mine[0].position, mine[0].token_ids[:3]) == (0, ids("hel"))


async def test_a_request_of_a_newer_build_is_left_to_others(stage: Stage) -> None:
    """Nothing is ended: a worker that knows it may be there, or come."""
    newer, known = make_request(level=FEATURE_LEVEL + 1), make_request()
    async with running_worker(stage) as worker:
        await stage.submit(newer)
        await stage.submit(known)
        run = await worker.engine.next_run()
        assert run.prompt_ids == known.prompt_ids
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_finished(known.rid)
        assert await stage.cluster.ownership.last(newer.rid) is None
        assert await stage.num_queued() == 1


async def test_an_outdated_worker_hands_over_and_ends_nothing(stage: Stage) -> None:
    """Others have raised the level while it was away from their sight."""
    held, newer = make_request(), make_request(level=FEATURE_LEVEL + 1)
    async with running_worker(stage, shutdown_timeout_s=0.0) as worker:
        await stage.submit(held)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("he"))
        await stage.until_logged(held.rid, 2)
        revision = (await stage.cluster.level.read()).revision
        await stage.cluster.level.put(LevelRecord(FEATURE_LEVEL + 1), revision)
        await stage.submit(newer)
        await worker.until_outdated()
    assert [type(each.record) for each in await stage.records(held.rid)] == [Claim, Release]
    assert await stage.records(newer.rid) == []
    assert await stage.num_queued() == 2


async def test_a_malformed_request_ends_with_an_error(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        subject = stage.cluster.subjects.request(POOL, "interactive", "", request.rid)
        await stage.cluster.js.publish(subject, b"\xc1 not MessagePack")
        await stage.until_queue_is_empty()
        fold = await stage.fold(request.rid)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.ERROR
        worker.assert_nothing_held()


@pytest.mark.parametrize("bad_rid", ["", "zz", "a.b.>", "A" * 32])
async def test_a_request_without_a_proper_id_harms_nobody(stage: Stage, bad_rid: str) -> None:
    request = make_request()
    nameless = msgspec.structs.replace(make_request(), rid=bad_rid)
    async with running_worker(stage) as worker:
        js, subjects = stage.cluster.js, stage.cluster.subjects
        if "." not in bad_rid and bad_rid:
            await js.publish(subjects.request(POOL, "interactive", "", bad_rid), b"\xc1")
        subject = subjects.request(POOL, "interactive", "", make_request().rid)
        await js.publish(subject, encode(nameless))
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert run.prompt_ids == request.prompt_ids
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_a_prompt_that_is_no_whole_number_of_tokens_ends_with_an_error(stage: Stage) -> None:
    request = make_request(prompt_ids=b"\x01\x00\x00")
    async with running_worker(stage) as worker:
        await stage.submit(request)
        fold = await stage.until_finished(request.rid)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.ERROR
        await stage.until_queue_is_empty()
        assert worker.engine.runs == {}


async def test_a_record_of_another_version_is_none(stage: Stage) -> None:
    """Nobody who writes such ones may write to these streams: their incarnation says so."""
    request = make_request()
    subject = stage.cluster.subjects.ownership(request.rid)
    await stage.cluster.js.publish(subject, encode(make_end()).replace(b"\xa1v\x02", b"\xa1v\x03"))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("a")
        await stage.until_queue_is_empty()


async def test_a_request_for_another_tokenizer_is_left_to_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.intake.screening._OTHER_MODEL_DELAY_S", 0.3)
    request = make_request(tokenizer_hash="other")
    async with running_worker(stage) as worker:
        await stage.submit(request)
        await time_to_err(0.1)
        assert worker.engine.runs == {}
    delivery = await stage.pull()
    waited = datetime.datetime.now(datetime.UTC) - delivery.queued_at
    assert waited.total_seconds() > 0.25
    assert await stage.records(request.rid) == []


async def test_what_was_ended_leaves_the_queue_with_any_tokenizer(
    stage: Stage,
) -> None:
    request = make_request(tokenizer_hash="other")
    await stage.cluster.ownership.end(request.rid, make_end())
    async with running_worker(stage):
        await stage.submit(request)
        await stage.until_queue_is_empty()


async def test_a_long_prompt_comes_from_the_object_store(stage: Stage) -> None:
    request = make_request(prompt_ids=b"", prompt_object="prompt-1")
    prompt_ids = make_request().prompt_ids
    async with running_worker(stage) as worker:
        await worker.runner.claims.taker._catalog.put_object("prompt-1", prompt_ids)
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert run.prompt_ids == prompt_ids
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()


EMBEDS = PromptEmbeds(2, EmbedsDtype.FLOAT16, b"digest")


def make_image_request(*, is_of_embeds: bool = False) -> tuple[GenerateRequest, bytes]:
    """As it is queued, and its object."""
    images = () if is_of_embeds else (ImageSpan(1, 2, b"digest"),)
    request = make_request(images=images, embeds=EMBEDS if is_of_embeds else None)
    return without_large_parts(request, (b"pixels",))


@pytest.mark.parametrize("is_of_embeds", [False, True])
async def test_pixels_and_embeddings_come_from_the_object_store_on_every_worker(
    stage: Stage, is_of_embeds: bool
) -> None:
    """The prompt's tokens travel in the request; a resumed run has its images again."""
    request, stored = make_image_request(is_of_embeds=is_of_embeds)
    assert request.prompt_ids == make_request().prompt_ids
    delivery = await stage.submit_and_pull(request)
    claim = make_claim(request, "dead", request_seq=delivery.request_seq)
    epoch = await stage.append(request.rid, claim)
    await stage.write("dead", request.rid, epoch, 0, ids("hel"))
    async with running_worker(stage) as worker:
        await worker.runner.claims.taker._catalog.put_object(request.prompt_object, stored)
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        run = await worker.engine.next_run()
        assert output_of(run) == ids("hel")
        assert run.prompt_ids == request.prompt_ids
        if is_of_embeds:
            assert run.embeds == RunEmbeds(2, EmbedsDtype.FLOAT16, b"pixels")
        else:
            assert run.images == (RunImage(1, 2, b"digest", b"pixels"),)
        worker.engine.emit(run.run_id, ids("lo"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        store = await stage.cluster.nc.jetstream().object_store(
            stage.cluster.subjects.objects_bucket
        )

        async def is_gone() -> bool:
            try:
                info = await store.get_info(request.prompt_object, show_deleted=True)
            except ObjectNotFoundError:
                return True
            return bool(info.deleted)

        await eventually_async(is_gone)  # nobody needs it any more


@pytest.mark.parametrize("stored", [b"no message", encode(PromptData(b"", (b"1", b"2")))])
async def test_an_object_that_lacks_the_images_ends_with_an_error(
    stage: Stage, stored: bytes
) -> None:
    request, _ = make_image_request()
    async with running_worker(stage) as worker:
        await worker.runner.claims.taker._catalog.put_object(request.prompt_object, stored)
        await stage.submit(request)
        fold = await stage.until_finished(request.rid)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.ERROR
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_a_prompt_that_is_gone_ends_with_an_error(stage: Stage) -> None:
    request = make_request(prompt_ids=b"", prompt_object="gone")
    async with running_worker(stage) as worker:
        await stage.submit(request)
        fold = await stage.until_finished(request.rid)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.ERROR
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_a_request_that_was_ended_needs_no_prompt(stage: Stage) -> None:
    """The frontend deletes the prompt of what it has ended."""
    request = make_request(prompt_ids=b"", prompt_object="deleted")
    await stage.cluster.ownership.end(request.rid, make_end())
    async with running_worker(stage):
        await stage.submit(request)
        await stage.until_queue_is_empty()
    [record] = await stage.records(request.rid)
    assert record.record.reason is FinishReason.CANCEL  # type: ignore[union-attr]


async def test_what_comes_without_a_slot_for_it_goes_back_to_the_queue(stage: Stage) -> None:
    """The urgent pull is open while the batch class takes the last slot."""
    batch, urgent = make_request(), make_request()
    async with running_worker(stage, max_running=1) as worker:
        await eventually(lambda: worker.runner._puller.num_watched > 0)
        await stage.submit(batch, "batch")
        run = await worker.engine.next_run()
        await stage.submit(urgent)
        assert (await stage.pull()).rid == urgent.rid  # somebody with room gets it
        assert list(worker.engine.runs) == [run.run_id]
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_finished(batch.rid)
        await worker.until_idle()


async def test_what_comes_to_a_worker_that_cannot_run_it_goes_back_unclaimed(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage, max_running=1) as worker:
        await eventually(lambda: worker.runner._puller.num_watched > 0)
        worker.runner.parts.capacity.close()
        await stage.submit(request)
        assert (await stage.pull()).rid == request.rid
        await worker.until_idle()
        assert worker.engine.runs == {}
    assert await stage.records(request.rid) == []


# Stop strings


async def test_a_stop_string_ends_the_run_and_later_tokens_never_reach_the_log(
    stage: Stage,
) -> None:
    request = make_request(text=TextParams(stop=("end",)))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("the en"))
        worker.engine.emit(run.run_id, ids("d of it"))  # several tokens in one step
        worker.engine.emit(run.run_id, ids("more"), LENGTH)  # the abort was not heard yet
        fold = await stage.until_finished(request.rid)
        assert fold.tokens == ids("the end")
        assert fold.finish == Finish(FinishReason.STOP, matched="end")
        assert worker.engine.aborted == [run.run_id]
        await stage.until_queue_is_empty()
        await worker.until_idle()
    logged = [token for _, entry in await stage.entries(request.rid) for token in entry.token_ids]
    assert logged == ids("the end")


async def test_a_stop_string_wins_over_a_finish_of_the_same_step(stage: Stage) -> None:
    request = make_request(text=TextParams(stop=("b",)))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("abc"), Finish(FinishReason.LENGTH, num_cached_tokens=2))
        fold = await stage.until_finished(request.rid)
        assert fold.tokens == ids("ab")
        assert fold.finish == Finish(FinishReason.STOP, matched="b", num_cached_tokens=2)
        assert worker.engine.aborted == []  # it has ended by itself
        await worker.until_idle()


async def test_a_resumed_run_knows_what_its_stop_string_began_with(stage: Stage) -> None:
    request = make_request(text=TextParams(stop=("end",)))
    delivery = await stage.submit_and_pull(request)
    claim = make_claim(request, "dead", request_seq=delivery.request_seq)
    epoch = await stage.append(request.rid, claim)
    await stage.write("dead", request.rid, epoch, 0, ids("the en"))
    async with running_worker(stage) as worker:
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("dx"))
        assert (await stage.until_finished(request.rid)).tokens == ids("the end")
        await worker.until_idle()


async def test_a_prefix_that_ends_in_the_stop_string_runs_no_more(stage: Stage) -> None:
    """Its finish was in a frame of its own that was lost with the worker."""
    request = make_request(text=TextParams(stop=("end",)))
    delivery = await stage.submit_and_pull(request)
    claim = make_claim(request, "dead", request_seq=delivery.request_seq)
    epoch = await stage.append(request.rid, claim)
    await stage.write("dead", request.rid, epoch, 0, ids("the end"))
    async with running_worker(stage) as worker:
        await stage.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        fold = await stage.until_finished(request.rid)
        assert fold.tokens == ids("the end")
        assert fold.finish == Finish(FinishReason.STOP, matched="end")
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.engine.runs == {}


# Notices


async def test_a_cancelled_run_is_aborted_and_acknowledged(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(request.rid, 2)
        await stage.cluster.ownership.end(request.rid, make_end())
        await notify(stage, Cancel(request.rid))
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.engine.aborted == [run.run_id]


async def test_a_cancel_notice_without_an_end_changes_nothing(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await notify(stage, Cancel(request.rid))
        await stage.cluster.nc.flush()
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        assert (await stage.until_finished(request.rid)).finish == STOP
        await worker.until_idle()


async def test_a_cancel_that_comes_between_claim_and_run_is_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is stored, its past is still being read: the end stands behind our claim."""
    request = make_request()
    async with running_worker(stage) as worker:
        may_return = asyncio.Event()
        is_claimed = asyncio.Event()
        take = worker.runner.claims.taker._claimer.take

        async def take_slowly(*args: object) -> object:
            result = await take(*args)  # type: ignore[arg-type]
            is_claimed.set()
            await may_return.wait()
            return result

        monkeypatch.setattr(worker.runner.claims.taker._claimer, "take", take_slowly)
        await stage.submit(request)
        run = await worker.engine.next_run()
        await is_claimed.wait()
        await stage.cluster.ownership.end(request.rid, make_end())
        await notify(stage, Cancel(request.rid))
        await stage.cluster.nc.flush()
        await worker.cluster.nc.flush()
        await asyncio.sleep(0.05)  # the worker looks into the log
        may_return.set()
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.engine.aborted == [run.run_id]
    assert await stage.entries(request.rid) == []


async def test_a_fenced_run_is_dropped_in_silence(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(request.rid, 2)
        epoch = worker.held[0].epoch
        await notify(stage, Fenced(request.rid, epoch - 1, worker.id))  # of an older epoch
        await notify(stage, Fenced(request.rid, epoch, "other"))
        await notify(stage, Fenced(request.rid, epoch, worker.id))
        await worker.until_idle()
        assert worker.engine.aborted == [run.run_id]
        worker.engine.emit(run.run_id, ids("c"), STOP)
        await worker.runner.parts.token_log.wait_flushed(1)
        assert (await stage.fold(request.rid)).tokens == ids("ab")
        assert await stage.num_queued() == 1
    assert len(await stage.records(request.rid)) == 1  # nothing was released either


async def test_unreadable_notices_are_passed_over(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        control = stage.cluster.subjects.control(POOL)
        await stage.cluster.nc.publish(control, b"\xc1")
        await notify(stage, Cancel(request.rid))  # of a request that nobody holds
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()


# Settling


async def test_a_worker_says_nothing_of_what_it_has_finished(
    stage: Stage, acks: list[bytes]
) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.count("requests.finished") == 1
        await round_trip(worker.cluster.nc)
        assert acks == [b"+ACK"], "who reads its finish says so"


async def test_what_was_claimed_by_another_before_the_finish_is_not_acknowledged(
    older_stage: Stage,
) -> None:
    stage = older_stage
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: bool(worker.held) and worker.held[0].epoch > 0)
        epoch = worker.held[0].epoch
        await stage.append(request.rid, make_claim(request, "other", prev=epoch))
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        await worker.until_idle()
        assert await stage.num_queued() == 1
        assert (await stage.fold(request.rid)).tokens == []


async def test_who_has_lost_a_request_leaves_its_prompt_to_the_next(stage: Stage) -> None:
    request = make_request(prompt_ids=b"", prompt_object="prompt-1")
    async with running_worker(stage) as worker:
        catalog = worker.runner.claims.taker._catalog
        await catalog.put_object("prompt-1", make_request().prompt_ids)
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: bool(worker.held) and worker.held[0].epoch > 0)
        epoch = worker.held[0].epoch
        await stage.append(request.rid, make_claim(request, "other", prev=epoch))
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        await worker.until_idle()
        assert worker.count("requests.fenced") == 1
        assert await catalog.object("prompt-1") == make_request().prompt_ids


async def test_a_claim_behind_the_finish_does_not_keep_it_in_the_queue(
    older_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = older_stage
    request = make_request()
    async with running_worker(stage) as worker:
        confirmed = worker.runner.parts.settler.settle

        async def settle_late(held: object, finish_seq: int) -> None:
            epoch = worker.held[0].epoch
            await stage.append(request.rid, make_claim(request, "other", prev=epoch))
            await confirmed(held, finish_seq)  # type: ignore[arg-type]

        monkeypatch.setattr(worker.runner.parts.settler, "settle", settle_late)
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.count("requests.fenced") == 0, "it did not wait to be delivered again"
    assert (await stage.fold(request.rid)).finish == STOP


async def test_an_end_before_the_finish_lets_it_leave_the_queue(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: bool(worker.held) and worker.held[0].epoch > 0)
        await stage.cluster.ownership.end(request.rid, make_end())
        worker.engine.emit(run.run_id, ids("ab"), STOP)  # the notice is still on its way
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert worker.count("requests.fenced") == 0, "it did not wait to be delivered again"
    assert (await stage.fold(request.rid)).finish == Finish(FinishReason.CANCEL)


# Redelivered to its holder


async def test_a_redelivery_of_what_we_run_is_adopted(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: bool(worker.held) and worker.held[0].epoch > 0)
        before = worker.held[0].delivery
        await stage.cluster.nc.publish(before.ack_subject, b"-NAK")
        await eventually(lambda: worker.held[0].delivery.num_delivered == 2)
        worker.engine.emit(run.run_id, ids("ab"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()
        assert list(worker.engine.runs) == [run.run_id]
    assert len(await stage.records(request.rid)) == 1


async def test_a_redelivery_of_what_we_lost_without_knowing_is_taken_anew(stage: Stage) -> None:
    request = make_request()
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: bool(worker.held) and worker.held[0].epoch > 0)
        held = worker.held[0]
        worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(request.rid, 2)
        claim = make_claim(request, "other", prev=held.epoch, request_seq=held.delivery.request_seq)
        epoch = await stage.append(request.rid, claim)
        await stage.write("other", request.rid, epoch, 0, ids("abx"))
        await stage.cluster.nc.publish(held.delivery.ack_subject, b"-NAK")
        again = await worker.engine.next_run()
        assert output_of(again) == ids("abx")
        assert worker.engine.aborted == [run.run_id]
        worker.engine.emit(run.run_id, ids("zzz"))  # of the old run: nobody hears it
        worker.engine.emit(again.run_id, ids("y"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("abxy")
        await worker.until_idle()


async def test_a_duplicate_message_of_what_we_run_waits(stage: Stage) -> None:
    request = make_request(may_be_copy=True)  # as of two frontends, whose clients have one key
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        await stage.submit(request, "batch")
        await stage.cluster.nc.flush()
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_finished(request.rid)
        await worker.until_idle()
        assert list(worker.engine.runs) == [run.run_id]


# Restating


async def test_long_outputs_are_restated_so_that_a_reader_may_start_late(stage: Stage) -> None:
    request = make_request(sampling=SamplingParams(max_tokens=2000, seed=1))
    tokens = [idx % 29 for idx in range(1500)]
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        # What is made before its claim is stored is logged as one piece.
        await eventually(lambda: worker.held[0].state is HoldState.RUNNING)
        for start in range(0, 1500, 100):
            finish = LENGTH if start == 1400 else None
            worker.engine.emit(run.run_id, tokens[start : start + 100], finish)
            await asyncio.sleep(0)
        assert (await stage.until_finished(request.rid)).tokens == tokens
        await worker.until_idle()
    starts = [seq for seq, entry in await stage.entries(request.rid) if entry.position == 0]
    assert len(starts) >= 3  # its beginning, and two restatements
    for start in starts:
        late = await stage.fold(request.rid, from_seq=start)
        assert (late.tokens, late.finish) == (tokens, LENGTH)


# The log is full


async def test_an_overfull_log_pauses_the_engine_until_it_has_room(stage: Stage) -> None:
    request = make_request(sampling=SamplingParams(max_tokens=10_000, seed=1))
    async with running_worker(stage) as worker:
        worker.runner.parts.token_log._max_pending_tokens = 100
        await stage.submit(request)
        run = await worker.engine.next_run()
        await eventually(lambda: bool(worker.held) and worker.held[0].epoch > 0)
        worker.engine.emit(run.run_id, ids("a") * 101)
        await asyncio.sleep(0)
        assert worker.engine.is_paused
        assert worker.runner.parts.capacity.num_credits() == 0
        # A paused engine tells nothing: the log itself must say when there is room.
        await eventually(lambda: not worker.engine.is_paused)
        worker.engine.emit(run.run_id, ids("b"), STOP)
        assert (await stage.until_finished(request.rid)).tokens == ids("a") * 101 + ids("b")
        await worker.until_idle()


# Deadlines


async def test_what_nobody_ends_at_its_deadline_the_worker_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.capacity.ack_heartbeat._DEADLINE_SLACK_S", 0.1)
    request = make_request(deadline_s=0.5)
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        fold = await stage.until_finished(request.rid)
        assert fold.finish == Finish(FinishReason.DEADLINE)
        await stage.until_queue_is_empty()
        await worker.until_idle()


# Embeddings


async def test_an_embedding_rides_in_the_finish(stage: Stage) -> None:
    request = make_request(pooling=PoolingParams(PoolingKind.MEAN))
    finish = Finish(FinishReason.STOP, embedding=b"\x00\x00\x80?" * 1000)
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert run.options.pooling == request.pooling
        worker.engine.emit(run.run_id, [], finish)
        fold = await stage.until_finished(request.rid)
        assert (fold.tokens, fold.finish) == ([], finish)
        await stage.until_queue_is_empty()


async def test_an_embedding_above_max_payload_is_an_error(stage: Stage) -> None:
    request = make_request(pooling=PoolingParams(PoolingKind.LAST))
    finish = Finish(FinishReason.STOP, embedding=bytes(stage.cluster.nc.max_payload))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, [], finish)
        fold = await stage.until_finished(request.rid)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.ERROR
        assert "max_payload" in (fold.finish.message or "")
        await stage.until_queue_is_empty()


async def test_a_request_for_a_tokenizer_that_nobody_has_ends_at_its_deadline(
    stage: Stage,
) -> None:
    request = make_request(tokenizer_hash="other", deadline_s=0.5)
    await stage.submit(request)
    async with running_worker(stage):
        fold = await stage.until_finished(request.rid)
        await stage.until_queue_is_empty()
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.DEADLINE
    assert "tokenizer" in (fold.finish.message or "")


async def test_what_a_beam_search_has_found_rides_in_the_finish_with_its_texts(
    stage: Stage,
) -> None:
    request = make_request(
        sampling=SamplingParams(8, 0, beam=BeamParams(2, 2)), text=TextParams(prompt_tail=(3,))
    )
    beams = tuple(
        Beam(pack_token_ids(ids(text)), logprob, FinishReason.LENGTH)
        for text, logprob in (("hello.", -1.5), ("no", -2.5))
    )
    finish = Finish(FinishReason.LENGTH, num_cached_tokens=2, beams=beams)
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert run.options.sampling.beam == request.sampling.beam
        worker.engine.emit(run.run_id, [], finish)
        fold = await stage.until_finished(request.rid)
        await stage.until_queue_is_empty()
        assert worker.count("requests.generation_tokens") == len("hello." + "no")
        assert worker.runner.work_done.num_finished_tokens == 3 - 2 + len("hello." + "no")
    told = tuple(
        msgspec.structs.replace(beam, text=text)
        for beam, text in zip(beams, ("hello.", "no"), strict=True)
    )
    assert (fold.tokens, fold.finish) == ([], msgspec.structs.replace(finish, beams=told))


async def test_what_is_to_be_kept_is_told_to_the_engine_and_by_the_metrics(stage: Stage) -> None:
    request = make_request(keep=KeepPrefix(60.0, 2))
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        assert run.options.keep == request.keep
        worker.engine.emit(run.run_id, ids("a"), LENGTH)
        worker.engine.step([], num_pinned_tokens=48)
        worker.worker.update_metrics()
        pinned = "jetflock_prefix_cache_pinned_tokens"
        assert worker.registry.get_sample_value(pinned, {"model_name": "m"}) == 48
