"""Floors advance, and a detokenizer that starts at one comes to the same text."""

from __future__ import annotations

import asyncio

import pytest

from detok import floor_keeper, partial_requests
from detok.floor_keeper import FloorKeeper
from shared.errors import BrokerUnavailable
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End
from shared.protocol.token_ids import unpack_token_ids
from tests.bad_moment import failing_once
from tests.detok.scripted import Stage, make_rid, running_detok, wait_for_done
from tests.eventually import Looks, eventually
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

TEXT = "the quick brown fox jumps over the lazy dog"


async def wait_for_floor(stage: Stage, floor: int) -> None:
    bucket = stage.cluster.bucket(stage.cluster.subjects.floors_bucket)
    async for _ in Looks(why=f"the floor is not {floor}"):
        entry = await bucket.get("0")
        if entry is not None and int(entry.value) == floor:
            return


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"9" * 5000, "٣".encode()])
async def test_a_floor_that_is_no_number_is_the_beginning(stage: Stage, value: bytes) -> None:
    floors = stage.cluster.bucket(stage.cluster.subjects.floors_bucket)
    await floors.put("0", value)
    assert await FloorKeeper(stage.cluster, 0).load() == 1


async def test_a_floor_beyond_the_end_of_the_log_is_of_a_log_that_is_gone(stage: Stage) -> None:
    """What was restored from a copy is read from its beginning; a quiet log has its floor behind
    its end.
    """
    floors = stage.cluster.bucket(stage.cluster.subjects.floors_bucket)
    end = await stage.worker().claim(make_rid(stage.cluster))
    for floor, loaded in ((end, end), (end + 1, end + 1), (end + 2, 1)):
        await floors.put("0", b"%d" % floor)
        assert await FloorKeeper(stage.cluster, 0).load() == loaded


async def test_a_floor_is_read_and_written_once_nats_answers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floor_keeper, "_RETRY_S", 0.01)
    monkeypatch.setattr(floor_keeper, "_INTERVAL_S", 0.01)
    await stage.worker().claim(make_rid(stage.cluster))
    floors = stage.cluster.bucket(stage.cluster.subjects.floors_bucket)
    keeper, num_asked = FloorKeeper(stage.cluster, 0), 0

    def floor() -> int:
        nonlocal num_asked
        num_asked += 1
        return 2

    failing_once(monkeypatch, keeper._bucket, "put", BrokerUnavailable("away"))
    writing = asyncio.create_task(keeper.run(floor))
    await wait_for_floor(stage, 2)
    before = num_asked
    await eventually(lambda: num_asked > before + 3)
    entry = await floors.get("0")
    assert entry is not None
    assert entry.revision == 1, "it is written when it has changed"
    writing.cancel()
    failing_once(monkeypatch, keeper._bucket, "get", BrokerUnavailable("away"))
    assert await keeper.load() == 2


async def test_the_floor_is_the_claim_of_the_oldest_live_request(stage: Stage) -> None:
    worker = stage.worker()
    old, young = make_rid(stage.cluster), make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    async with running_detok(stage.config):
        old_epoch = await worker.claim(old)
        young_epoch = await worker.claim(young)
        await worker.write(young, young_epoch, 0, ids)
        await wait_for_floor(stage, old_epoch)
        await worker.write(old, old_epoch, 0, ids, Finish(FinishReason.STOP))
        last = await worker.write(young, young_epoch, len(ids), [], Finish(FinishReason.STOP))
        await wait_for_floor(stage, last + 1)


async def test_a_restatement_lets_the_floor_pass_the_claim(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:4])
        await worker.write(rid, epoch, 4, ids[4:6])
        restated = await worker.write(rid, epoch, 0, ids[:3])
        await worker.write(rid, epoch, 3, ids[3:6])
        await wait_for_floor(stage, restated)
    listener.chunks.clear()
    async with running_detok(stage.config):
        await worker.write(rid, epoch, 6, ids[6:], Finish(FinishReason.STOP))
        done = await wait_for_done(stage.cluster, rid)
        await eventually(listener.has_finished(rid))
    assert unpack_token_ids(done.token_ids) == ids
    assert listener.text(rid) == done.text == TEXT
    assert done.reply is not None  # from the ownership log, since the claim lies below the floor
    assert listener.chunks[0].offset == 0


async def test_a_request_taken_over_between_restatements(stage: Stage) -> None:
    first, second, listener = stage.worker(), stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    async with running_detok(stage.config):
        epoch = await first.claim(rid)
        await first.write(rid, epoch, 0, ids[:4])
        await eventually(lambda: listener.text(rid) != "")
    # While nobody reads: a new claim, an unfinished restatement.
    newer = await second.claim(rid, prev=epoch)
    await second.write(rid, newer, 0, ids[:2])
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await time_to_err(1.2)
    async with running_detok(stage.config):
        await stage.cluster.ownership.end(rid, End(0, FinishReason.CANCEL, "f"))
        done = await wait_for_done(stage.cluster, rid)
    assert unpack_token_ids(done.token_ids) == ids[:4]


async def test_late_frames_of_a_finished_request_do_not_bring_it_back(stage: Stage) -> None:
    worker, cluster = stage.worker(), stage.cluster
    rid = make_rid(cluster)
    ids = stage.ids(TEXT)
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        last = await worker.write(rid, epoch, 0, ids, Finish(FinishReason.STOP))
        await wait_for_done(cluster, rid)
        await wait_for_floor(stage, last + 1)
        await worker.write(rid, epoch, 0, ids)
        await time_to_err(0.2)
        assert detok._gauges().requests_live == 0
    stage.listener.chunks.clear()
    async with running_detok(stage.config) as detok:
        await worker.write(rid, epoch, 3, ids[3:])
        await eventually(lambda: detok.owned == [0, 1])
        await time_to_err(0.3)
        assert detok._gauges().requests_live == 0
        await cluster.ownership.end(rid, End(0, FinishReason.CANCEL, "f"))
        await time_to_err(0.3)
        assert detok._gauges().requests_live == 0
    assert stage.listener.chunks == []
    assert (await wait_for_done(cluster, rid)).finish == Finish(FinishReason.STOP)


async def test_an_end_on_a_request_known_in_part_tells_the_whole(stage: Stage) -> None:
    worker, cluster, listener = stage.worker(), stage.cluster, stage.listener
    rid = make_rid(cluster)
    ids = stage.ids(TEXT)
    epoch = await worker.claim(rid)
    await worker.write(rid, epoch, 0, ids[:3])
    middle = await worker.write(rid, epoch, 3, ids[3:6])
    await cluster.bucket(cluster.subjects.floors_bucket).put("0", b"%d" % middle)
    await cluster.ownership.end(rid, End(0, FinishReason.CANCEL, "f"))
    async with running_detok(stage.config):
        done = await wait_for_done(cluster, rid)
        await eventually(listener.has_finished(rid))
    assert unpack_token_ids(done.token_ids) == ids[:6]
    assert listener.text(rid) == done.text == stage.tokenizer.decode(ids[:6])


async def test_a_finish_on_a_request_known_in_part_tells_the_whole(stage: Stage) -> None:
    worker, cluster, listener = stage.worker(), stage.cluster, stage.listener
    rid = make_rid(cluster)
    ids = stage.ids(TEXT)
    epoch = await worker.claim(rid)
    await worker.write(rid, epoch, 0, ids[:3])
    last = await worker.write(rid, epoch, 3, ids[3:], Finish(FinishReason.STOP))
    await cluster.bucket(cluster.subjects.floors_bucket).put("0", b"%d" % last)
    async with running_detok(stage.config):
        done = await wait_for_done(cluster, rid)
        await eventually(listener.has_finished(rid))
    assert listener.text(rid) == done.text == TEXT


async def test_the_owner_as_of_then_counts_not_the_owner_of_now(stage: Stage) -> None:
    first, second, cluster = stage.worker(), stage.worker(), stage.cluster
    rid = make_rid(cluster)
    ids = stage.ids(TEXT)
    epoch = await first.claim(rid)
    await first.write(rid, epoch, 0, ids[:3])
    restated = await first.write(rid, epoch, 0, ids[:3])
    await first.write(rid, epoch, 3, ids[3:6])
    await second.claim(rid, prev=epoch)
    await cluster.bucket(cluster.subjects.floors_bucket).put("0", b"%d" % restated)
    async with running_detok(stage.config):
        shown = stage.tokenizer.decode(ids[:6])
        await eventually(stage.listener.has_text(rid, shown))


async def test_a_finished_request_that_only_late_frames_remember(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result has expired, the log still has it: it must not hold the floor for ever."""
    worker, cluster = stage.worker(), stage.cluster
    rid = make_rid(cluster)
    ids = stage.ids(TEXT)
    epoch = await worker.claim(rid)
    last = await worker.write(rid, epoch, 0, ids, Finish(FinishReason.STOP))
    await worker.write(rid, epoch, 3, ids[3:5])
    end = await worker.write(rid, epoch, 5, ids[5:6])
    await cluster.bucket(cluster.subjects.floors_bucket).put("0", b"%d" % (last + 1))
    monkeypatch.setattr(partial_requests, "_CHECK_S", 0.5)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok._gauges().requests_live == 1)
        await wait_for_floor(stage, end + 1)
    assert (await wait_for_done(cluster, rid)).text == TEXT


async def test_frames_that_nobody_ever_claimed_are_ignored(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid, stray = make_rid(stage.cluster), make_rid(stage.cluster)
    async with running_detok(stage.config) as detok:
        await worker.write(stray, 1, 0, [5], Finish(FinishReason.STOP))
        epoch = await worker.claim(rid)
        last = await worker.write(rid, epoch, 0, stage.ids(TEXT), Finish(FinishReason.STOP))
        await eventually(listener.has_finished(rid))
        await wait_for_floor(stage, last + 1)
        assert detok._gauges().requests_live == 0
    assert stray not in listener.texts
