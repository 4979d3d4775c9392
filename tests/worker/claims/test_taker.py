"""What becomes of a request by what came of its claim: a whole worker, against a real server."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from shared.catalog.model_catalog import ModelCatalog
from shared.nats_client.connection import round_trip
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release
from tests.eventually import eventually
from tests.worker.claims.test_claimer import ForgetfulOwnership, make_end
from tests.worker.claims.test_poison import make_suspect
from tests.worker.io_stage import POOL, Stage, ids, make_card, make_claim, make_request
from tests.worker.running_worker import RunningWorker, running_worker

pytestmark = pytest.mark.integration

STOP = Finish(FinishReason.STOP)


async def assert_said(
    acks: list[bytes], stage: Stage, worker: RunningWorker, *words: bytes
) -> None:
    """All that anybody has told the server of its deliveries by now."""
    await round_trip(worker.cluster.nc)
    await round_trip(stage.cluster.nc)
    assert acks == list(words)


async def test_who_loses_a_request_while_it_claims_it_says_nothing_to_the_queue(
    stage: Stage, acks: list[bytes]
) -> None:
    """An ack would lose the request with its new holder, a nak would take it from that one."""
    request = make_request()

    class Overtaken(ForgetfulOwnership):
        async def meanwhile(self, rid: str, seq: int) -> None:
            await stage.append(rid, make_claim(request, "other", prev=seq))

    async with running_worker(stage) as worker:
        ownership = Overtaken(stage.cluster.ownership)
        worker.runner.claims.taker._claimer._ownership = ownership  # type: ignore[assignment]
        await stage.submit(request)
        early = await worker.engine.next_run()
        await eventually(lambda: worker.engine.aborted == [early.run_id])
        await worker.until_idle()
        await assert_said(acks, stage, worker)
    assert await stage.num_queued() == 1


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_a_living_worker_holds_is_given_back_once(
    stage: Stage, acks: list[bytes], is_shared: bool
) -> None:
    request = make_request()
    delivery = await stage.submit_and_pull(request)
    delivery = dataclasses.replace(delivery, is_shared=is_shared)
    await stage.show_heartbeat("slow")
    claim = make_claim(request, "slow", request_seq=delivery.request_seq)
    await stage.append(request.rid, claim)
    async with running_worker(stage) as worker:
        taker = worker.runner.claims.taker
        assert not await taker.take(request, delivery), "it has not come to a claim"
        worker.assert_nothing_held()
        half_the_ack_wait = b'-NAK {"delay":4000000000}'  # nanoseconds
        await assert_said(acks, stage, worker, *([] if is_shared else [half_the_ack_wait]))
        assert await taker.take(request, delivery)
        await eventually(lambda: worker.held[0].epoch > 0)
    assert await stage.num_queued() == 1


async def test_a_prompt_that_takes_too_long_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.claims.taker._PROMPT_TIMEOUT_S", 0.0)
    monkeypatch.setattr("worker.claims.claim_flow._RETRY_DELAY_S", 0.05)
    request, prompt_ids = make_request(prompt_ids=b"", prompt_object="p"), make_request().prompt_ids
    await ModelCatalog(stage.cluster).put_object("p", prompt_ids)
    async with running_worker(stage) as worker:
        await stage.submit(request)
        await eventually(lambda: worker.count("requests.redeliveries") > 0)
        monkeypatch.setattr("worker.claims.taker._PROMPT_TIMEOUT_S", 10.0)
        run = await worker.engine.next_run()
        assert run.prompt_ids == prompt_ids
        worker.engine.emit(run.run_id, ids("a"), STOP)
        await stage.until_queue_is_empty()
        await worker.until_idle()


async def test_a_model_card_that_cannot_be_read_keeps_no_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which adapters there are cannot be told now: the request comes again, to anybody."""
    monkeypatch.setattr("worker.claims.claim_flow._RETRY_DELAY_S", 0.05)
    models = stage.cluster.bucket(stage.cluster.subjects.models_bucket)
    request = make_request(adapter="revision-of-an-adapter")
    async with running_worker(stage) as worker:
        await models.put(POOL, b"\xc1")
        await stage.submit(request)
        await eventually(lambda: worker.count("requests.redeliveries") > 1)
        await models.put(POOL, encode(make_card()))
        fold = await stage.until_finished(request.rid)
        await stage.until_queue_is_empty()
        await worker.until_idle()
    assert fold.finish is not None
    assert fold.finish.reason is FinishReason.ADAPTER_UNLOADED


async def test_a_claim_that_comes_to_a_worker_that_is_leaving_is_released_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finishes what runs, and nothing is added to that."""
    request = make_request()
    async with running_worker(stage) as worker:
        claimer = worker.runner.claims.taker._claimer
        is_claimed, may_return, take = asyncio.Event(), asyncio.Event(), claimer.take

        async def take_slowly(*args: Any) -> object:
            result = await take(*args)
            is_claimed.set()
            await may_return.wait()
            return result

        monkeypatch.setattr(claimer, "take", take_slowly)
        await stage.submit(request)
        await is_claimed.wait()
        await worker.runner.stop_taking()
        may_return.set()
        await worker.until_idle()
        assert (await stage.pull()).rid == request.rid
    assert [type(each.record) for each in await stage.records(request.rid)] == [Claim, Release]


# Suspects


async def test_a_suspect_that_is_ended_as_it_is_claimed_alone_does_not_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect = await make_suspect(stage)
    async with running_worker(stage, is_ready=False) as worker:
        claimer = worker.runner.claims.taker._claimer
        claim_alone = claimer.claim_alone

        async def end_behind_the_claim(*args: Any) -> object:
            result = await claim_alone(*args)
            await stage.cluster.ownership.end(suspect.rid, make_end())
            await worker.runner.parts.settler.settle_ended(worker.held[0])
            return result

        monkeypatch.setattr(claimer, "claim_alone", end_behind_the_claim)
        worker.engine.become_ready()
        await stage.until_queue_is_empty()
        await worker.until_idle()
        await eventually(lambda: not worker.runner.parts.capacity.is_quarantined)
        assert list(worker.engine.runs) == worker.engine.aborted, "but for the early run"
        assert len(worker.engine.runs) == 1
    assert await stage.entries(suspect.rid) == []


@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_suspect_that_is_gone_before_it_is_claimed_alone_is_dropped(
    stage: Stage, acks: list[bytes], monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    suspect = await make_suspect(stage)
    async with running_worker(stage, is_ready=False) as worker:
        claimer = worker.runner.claims.taker._claimer
        claim_alone, is_tried = claimer.claim_alone, asyncio.Event()

        async def too_late(*args: Any) -> object:
            if is_ended:
                await stage.cluster.ownership.end(suspect.rid, make_end())
            else:
                claim = make_claim(suspect, "other", prev=args[0].taken.epoch)
                await stage.append(suspect.rid, claim)
            result = await claim_alone(*args)
            is_tried.set()
            return result

        monkeypatch.setattr(claimer, "claim_alone", too_late)
        worker.engine.become_ready()
        await is_tried.wait()
        await worker.until_idle()
        await eventually(lambda: not worker.runner.parts.capacity.is_quarantined)
        by_both = [b"+ACK"] * 2  # who reads its claim says so, too
        await assert_said(acks, stage, worker, *(by_both if is_ended else []))
    assert await stage.num_queued() == (0 if is_ended else 1)
