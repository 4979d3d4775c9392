"""Requests whose prompt is computed go on at a worker that decodes, and at the latest here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from shared.protocol.codec import decode, encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release
from shared.protocol.notices import Offer, OfferAnswer, OfferKind, OfferVerdict
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.protocol.sampling import BeamParams, SamplingParams
from tests.eventually import Looks, eventually
from tests.worker.io_stage import POOL, REVISION, Stage, make_request
from tests.worker.running_worker import RunningWorker, output_of, running_worker
from worker.affinity import pool_roles
from worker.engine_link.engine_messages import PagePeer
from worker.held.held_request import HoldState
from worker.intake import decode_hand_over, offer_handler

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)


@pytest.fixture(autouse=True)
def pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_roles, "_LOOK_S", 0.05)
    monkeypatch.setattr(decode_hand_over, "_ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(decode_hand_over, "_ANSWER_S", 5.0)  # nobody is silent, but for load


@asynccontextmanager
async def apart(
    stage: Stage, num_decode_slots: int = 4, pages: str = "folder", **config: Any
) -> AsyncIterator[tuple[RunningWorker, RunningWorker]]:
    """One that computes prompts, and one that decodes, which know of each other."""
    async with (
        running_worker(
            stage, role="prefill", hang_timeout_s=60.0, is_ready=False, **config
        ) as first,
        running_worker(
            stage, role="decode", hang_timeout_s=60.0, is_ready=False, max_running=num_decode_slots
        ) as second,
    ):
        first.engine.become_ready(pages="folder")
        second.engine.become_ready(pages=pages)
        await knows(first, second)
        await knows(second, first)
        await leaves_queue(second)
        # It would pull again where two looks in a tenth of a second miss the other one's card.
        second.runner.parts.roles._is_looking = False
        yield first, second


async def first_token(worker: RunningWorker) -> int:
    """Of the next run, behind its claim; its run id."""
    run = await worker.engine.next_run()
    await eventually(lambda: all(held.state is HoldState.RUNNING for held in worker.held))
    worker.engine.begin(run.run_id, 0.0, num_cached_tokens=2)
    worker.engine.emit(run.run_id, [1])
    return run.run_id


async def knows(worker: RunningWorker, other: RunningWorker) -> None:
    roles = worker.runner.parts.roles
    await eventually(lambda: any(card.worker == other.id for card in roles._others))


async def leaves_queue(worker: RunningWorker) -> None:
    """Until the broker knows that it pulls nothing more: what comes late it would take."""
    await eventually(lambda: worker.runner._pulling is None)
    await worker.cluster.nc.flush()  # its last pull ends meanwhile
    await worker.cluster.nc.flush()


async def test_the_rest_is_decoded_elsewhere_and_the_queue_hears_nothing(stage: Stage) -> None:
    async with apart(stage) as (first, second):
        request = make_request()
        await stage.submit(request)
        run_id = await first_token(first)
        other = await second.engine.next_run()
        assert output_of(other) == [1]
        assert other.options.seeks_pages
        assert not first.engine.runs[run_id].options.seeks_pages
        assert first.engine.aborted == [run_id]
        second.engine.begin(other.run_id, 0.0, num_cached_tokens=3)
        second.engine.emit(other.run_id, [2, 3], STOP)
        fold = await stage.until_finished(request.rid)
        assert fold.finish is not None
        assert (fold.tokens, fold.finish.reason) == ([1, 2, 3], FinishReason.STOP)
        assert fold.finish.num_cached_tokens == 2, "its client saved what its first run found"
        await stage.until_queue_is_empty()
        claim, release, last = [each.record for each in await stage.records(request.rid)]
        assert isinstance(claim, Claim)
        assert isinstance(release, Release)
        assert isinstance(last, Claim)
        assert (claim.worker, release.worker, last.worker) == (first.id, first.id, second.id)
        assert (release.progressed, release.crashed, release.pages) == (True, False, "folder")
        assert (first.count("decodes.moved"), second.count("requests.redeliveries")) == (1, 0)
        await first.until_idle()
        await second.until_idle()


async def test_who_has_another_folder_is_told_where_its_pages_are(
    stage: Stage, tmp_path: Path
) -> None:
    """And by which key they are sent; whoever is no worker is not."""
    bound: dict[str, Any] = {"kv_transfer_bind": "127.0.0.1:0", "kv_disk_dir": str(tmp_path)}
    async with apart(stage, pages="other-folder", **bound) as (first, second):
        server = first.runner.parts.peers.server
        assert server is not None
        assert server.mark == "folder"
        await eventually(lambda: second.runner.parts.peers.at("folder") is not None)
        await stage.submit(make_request())
        await first_token(first)
        other = await second.engine.next_run()
        assert not other.options.seeks_pages
        assert other.options.peer == PagePeer(str(server.endpoint), server.key)
        second.engine.emit(other.run_id, [2], STOP)
        await stage.until_queue_is_empty()
        stranger = await nats.connect(stage.config.nats_url)
        with pytest.raises(TimeoutError):
            await stranger.request(first.runner.parts.peers.key_subject, b"", 0.2)
        await stranger.close()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=10, seed=1),
        SamplingParams(max_tokens=100, seed=1, prompt_logprobs=0),
        SamplingParams(max_tokens=100, seed=1, beam=BeamParams(2, 1)),
    ],
    ids=["few tokens are left", "its prompt would be computed again", "no token is final"],
)
async def test_what_nobody_would_gain_by_stays(stage: Stage, sampling: SamplingParams) -> None:
    async with apart(stage) as (first, second):
        await stage.submit(make_request(sampling=sampling))
        run_id = await first_token(first)
        first.engine.emit(run_id, [2], STOP)
        await stage.until_queue_is_empty()
        assert second.engine.runs == {}


async def test_who_decodes_with_other_pages_gets_nothing_and_that_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []
    monkeypatch.setattr(pool_roles.log, "warning", lambda _, **fields: told.append(fields))
    async with apart(stage, pages="another folder") as (first, second):
        await stage.submit(make_request())
        run_id = await first_token(first)
        await eventually(lambda: first.count("decodes.kept") > 0)
        first.engine.emit(run_id, [2], STOP)
        await stage.until_queue_is_empty()
        assert second.engine.runs == {}
        assert [each["workers"] for each in told] == [[second.id]]


async def test_who_has_no_room_is_asked_again(stage: Stage) -> None:
    async with apart(stage, num_decode_slots=1) as (first, second):
        requests = [make_request(), make_request()]
        await stage.submit(requests[0])
        await first_token(first)
        taken = await second.engine.next_run()
        await stage.submit(requests[1])
        run_id = await first_token(first)
        await eventually(lambda: first.count("decodes.kept") > 0)
        assert first.engine.active == {run_id}
        second.engine.emit(taken.run_id, [2], STOP)
        async for _ in Looks():
            if second.engine.active:
                break
            first.engine.emit(run_id, [5])
        other = await second.engine.next_run()
        second.engine.emit(other.run_id, [6], STOP)
        fold = await stage.until_finished(requests[1].rid)
        assert fold.tokens[: len(output_of(other))] == output_of(other)
        await stage.until_queue_is_empty()


@pytest.mark.parametrize("verdict", [OfferVerdict.FULL, OfferVerdict.LEAVING, None])
async def test_what_is_not_taken_after_all_goes_on_where_it_was(
    stage: Stage, verdict: OfferVerdict | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It promises room, and refuses, leaves, or falls silent."""
    monkeypatch.setattr(decode_hand_over, "_ANSWER_S", 0.3)
    kinds: list[OfferKind] = []

    async def answer(message: Msg) -> None:
        kinds.append(decode(Offer, message.data).kind)
        said = OfferVerdict.TAKEN if kinds[-1] is OfferKind.ROOM else verdict
        if said is not None:
            await message.respond(encode(OfferAnswer(said)))

    subject = stage.cluster.subjects.offer(POOL, "worker-x")
    subscription = await stage.cluster.nc.subscribe(subject, cb=answer)
    card = WorkerCard(
        "worker-x", POOL, "m", REVISION, WorkerState.READY, max_running=1, role="decode"
    )
    bucket = stage.cluster.bucket(stage.cluster.subjects.workers_bucket)
    await bucket.put(f"{POOL}.worker-x", encode(card))
    async with running_worker(stage, role="prefill", hang_timeout_s=60.0) as first:
        await eventually(lambda: bool(first.runner.parts.roles._others))
        request = make_request()
        await stage.submit(request)
        await first_token(first)
        again = await first.engine.next_run()
        assert output_of(again) == [1]
        assert first.count("decodes.taken_back") == 1
        await bucket.delete(f"{POOL}.worker-x")
        await eventually(lambda: not first.runner.parts.roles._others)
        first.engine.emit(again.run_id, [2], STOP)
        fold = await stage.until_finished(request.rid)
        assert (fold.tokens, kinds[:2]) == ([1, 2], [OfferKind.ROOM, OfferKind.RELEASED])
        await stage.until_queue_is_empty()
    await subscription.unsubscribe()


async def test_who_decodes_takes_from_the_queue_while_nobody_else_does(stage: Stage) -> None:
    async with running_worker(stage, role="decode", hang_timeout_s=60.0) as second:
        await stage.submit(make_request())
        run = await second.engine.next_run()
        second.engine.emit(run.run_id, [1], STOP)
        async with running_worker(stage) as other:
            await knows(second, other)
            await leaves_queue(second)
            for _ in range(3):
                await stage.submit(make_request())
                run = await other.engine.next_run()
                other.engine.emit(run.run_id, [1], STOP)
            await stage.until_queue_is_empty()
        await eventually(lambda: second.runner._pulling is not None)
        await stage.submit(make_request())
        run = await second.engine.next_run()
        second.engine.emit(run.run_id, [1], STOP)
        await stage.until_queue_is_empty()


async def test_a_place_is_kept_for_a_while(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer_handler, "KEPT_S", 0.3)
    async with apart(stage, num_decode_slots=1) as (_, second):
        subject = stage.cluster.subjects.offer(POOL, second.id)

        async def ask(rid: str) -> OfferVerdict:
            ack_subject = f"$JS.ACK.{stage.cluster.subjects.requests_stream}.c.1.1.1.1.1"
            offer = Offer(b"", ack_subject, rid, 0, 0, 0, OfferKind.ROOM)
            answer = await second.cluster.nc.request(subject, encode(offer), 5.0)
            return decode(OfferAnswer, answer.data).verdict

        first, other = make_request().rid, make_request().rid
        assert await ask(first) is OfferVerdict.TAKEN
        assert await ask(first) is OfferVerdict.TAKEN
        assert await ask(other) is OfferVerdict.FULL
        await eventually(lambda: second.runner.parts.capacity.num_active == 0)
        assert await ask(other) is OfferVerdict.TAKEN
