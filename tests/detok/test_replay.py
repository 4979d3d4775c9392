"""Who asks for a text from an offset on gets it, whatever state the request is in."""

from __future__ import annotations

import contextlib

import pytest
from nats.aio.msg import Msg

from frontend.streams.detok_client import DetokClient
from shared.protocol.codec import decode, decode_text_frame, encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End
from shared.protocol.text import Held, ReplayReply, ReplayRequest, ReplayStatus, checksum
from shared.protocol.token_ids import unpack_token_ids
from tests.detok.scripted import (
    Listener,
    Stage,
    ask_replay,
    make_reply,
    make_rid,
    running_detok,
    wait_for_done,
)
from tests.eventually import Looks, eventually

pytestmark = pytest.mark.integration

TEXT = "the quick brown fox"


async def test_a_running_request_and_its_rest(stage: Stage) -> None:
    worker, cluster = stage.worker(), stage.cluster
    rid = make_rid(cluster)
    ids = stage.ids(TEXT)
    second = Listener(cluster, "frontend-y")
    await second.start()
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:3])
        await eventually(lambda: stage.listener.text(rid) != "")
        reply = await ask_replay(cluster, rid, 2, second.subject)
        assert reply.status is ReplayStatus.RUNNING
        assert reply.reply == make_reply(stage.listener.subject, rid)
        assert reply.chunk is not None
        shown = stage.tokenizer.decode(ids[:3])
        assert (reply.chunk.offset, reply.chunk.text) == (2, shown[2:])
        assert (reply.chunk.position, reply.chunk.token_ids) == (3, ids[:3])
        second.texts[rid] = shown[:2]
        second.take(reply.chunk)
        await worker.write(rid, epoch, 3, ids[3:], Finish(FinishReason.STOP))
        await eventually(second.has_finished(rid))
        await eventually(stage.listener.has_finished(rid))
        assert detok.stats.replays == 1
    assert second.text(rid) == stage.listener.text(rid) == TEXT
    assert second.gaps == []


async def test_an_offset_beyond_the_text_starts_at_its_end(stage: Stage) -> None:
    worker = stage.worker()
    rid = make_rid(stage.cluster)
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, stage.ids("fox"))
        await eventually(stage.listener.has_text(rid, "fox"))
        reply = await ask_replay(stage.cluster, rid, 99, "jf.out.x")
    assert reply.chunk is not None
    assert (reply.chunk.offset, reply.chunk.text) == (3, "")


async def test_a_finished_request(stage: Stage) -> None:
    worker = stage.worker()
    rid = make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids, Finish(FinishReason.STOP, matched="x"))
        await wait_for_done(stage.cluster, rid)
        await eventually(lambda: detok._gauges().requests_live == 0)
        reply = await ask_replay(stage.cluster, rid, 4, "jf.out.x")
    assert reply.status is ReplayStatus.DONE
    assert reply.reply is not None
    assert reply.chunk is not None
    assert reply.chunk.text == TEXT[4:]
    assert reply.chunk.token_ids == ids
    assert reply.chunk.finish == Finish(FinishReason.STOP, matched="x")


async def test_a_queued_request_is_remembered_until_its_claim(stage: Stage) -> None:
    worker = stage.worker()
    rid = make_rid(stage.cluster)
    second = Listener(stage.cluster, "frontend-y")
    await second.start()
    async with running_detok(stage.config):
        await eventually_answers(stage, rid, second.subject)
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, stage.ids(TEXT), Finish(FinishReason.STOP))
        await eventually(second.has_finished(rid))
    assert second.text(rid) == TEXT


async def eventually_answers(stage: Stage, rid: str, subject: str) -> None:
    async for _ in Looks():
        with contextlib.suppress(Exception):  # nobody owns the partition yet
            reply = await ask_replay(stage.cluster, rid, 0, subject)
            break
    assert (reply.status, reply.chunk) == (ReplayStatus.QUEUED, None)


async def test_a_request_that_the_detokenizer_never_read(stage: Stage) -> None:
    """Its floor is beyond the claim, as after a floor that should not be: the log still knows."""
    worker, cluster = stage.worker(), stage.cluster
    other = stage.worker("other")
    rid, neighbour = make_rid(cluster), make_rid(cluster)
    ids = stage.ids(TEXT)
    first = await worker.claim(rid)
    await worker.write(rid, first, 0, ids[:2])
    second = await other.claim(rid, prev=first)
    await worker.write(rid, first, 2, ids[:1] * 3)  # a zombie
    await other.write(rid, second, 0, ids[:4])
    last = await worker.write(neighbour, 1, 0, [5])
    await cluster.bucket(cluster.subjects.floors_bucket).put("0", b"%d" % (last + 1))
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        reply = await ask_replay(cluster, rid, 1, "jf.out.y")
        assert reply.status is ReplayStatus.RUNNING
        assert reply.chunk is not None
        assert reply.chunk.token_ids == ids[:4]
        assert reply.chunk.text == stage.tokenizer.decode(ids[:4])[1:]
        await cluster.ownership.end(rid, End(0, FinishReason.CANCEL, "f"))
        done = await wait_for_done(cluster, rid)
    assert done.text == stage.tokenizer.decode(ids[:4])
    assert done.finish == Finish(FinishReason.CANCEL)


async def test_of_several_it_is_told_which_have_changed(stage: Stage) -> None:
    """And who asks is sent what follows of each."""
    worker, cluster = stage.worker(), stage.cluster
    rids = [make_rid(cluster) for _ in range(5)]
    missed, torn, over, unknown, quiet = rids
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.extend(chunk.rid for chunk in decode_text_frame(message.data).chunks)

    await cluster.nc.subscribe("jf.out.elsewhere", cb=hear)
    async with running_detok(stage.config):
        epochs = {}
        for rid in (missed, torn, over, quiet):
            epochs[rid] = await worker.claim(rid)
            finish = Finish(FinishReason.STOP) if rid == over else None
            await worker.write(rid, epochs[rid], 0, stage.ids("fox"), finish)
            await eventually(stage.listener.has_text(rid, "fox"))
        others = [
            Held(missed, 2, checksum("fo")),
            Held(torn, 3, checksum("box")),
            *(Held(rid, 3, checksum("fox")) for rid in (over, unknown, quiet)),
        ]
        request = ReplayRequest(quiet, 3, "jf.out.elsewhere", 0, others)
        subject = cluster.subjects.replay(cluster.subjects.partition(quiet))
        answer = await cluster.nc.request(subject, encode(request), 5)
        reply = decode(ReplayReply, answer.data)
        assert (reply.status, reply.changed) == (ReplayStatus.RUNNING, rids[:4])
        num_known = len(stage.ids("fox"))
        await worker.write(missed, epochs[missed], num_known, stage.ids(TEXT)[num_known:])
        await eventually(lambda: heard == [missed])


async def test_nonsense_gets_no_answer_and_does_no_harm(stage: Stage) -> None:
    worker, nc = stage.worker(), stage.cluster.nc
    rid = make_rid(stage.cluster)
    async with running_detok(stage.config) as detok:
        await eventually(lambda: detok.owned == [0, 1])
        await nc.publish(stage.cluster.subjects.replay(0), b"\xc1", reply="x.y")
        await nc.publish(stage.cluster.subjects.replay(0), b"")
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, stage.ids(TEXT), Finish(FinishReason.STOP))
        await eventually(stage.listener.has_finished(rid))


@pytest.mark.parametrize("rid", ["é" * 32, "*", "0" * 31 + ">", ""])
async def test_who_asks_for_what_is_no_request_gets_nothing_and_harms_nobody(
    stage: Stage, rid: str
) -> None:
    cluster = stage.cluster
    async with running_detok(stage.config) as detok:
        known = make_rid(cluster)
        await eventually(lambda: detok.owned != [])
        subject = cluster.subjects.replay(cluster.subjects.partition(known))
        request = encode(ReplayRequest(rid, 0, "jf.out.x"))
        await cluster.nc.publish(subject, request, reply=cluster.nc.new_inbox())
        assert (await ask_replay(cluster, known, 0, "")).status is ReplayStatus.QUEUED
        assert detok.malformed.total == 1


PURGE = "$JS.API.STREAM.PURGE.jf_TOKENS"


@pytest.mark.parametrize(
    ("text_subject", "reply"),
    [("jf.out.x", PURGE), (PURGE, None), ("jf.out.*", None), ("jf.out.x", "jf.ctl.p.notice")],
)
async def test_nothing_is_told_where_no_frontend_listens(
    stage: Stage, text_subject: str, reply: str | None
) -> None:
    cluster, worker = stage.cluster, stage.worker()
    rid = make_rid(cluster)
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, stage.ids("fox"))
        await eventually(stage.listener.has_text(rid, "fox"))
        for subject in (text_subject, reply or text_subject):
            if not subject.startswith("$"):
                await cluster.nc.subscribe(subject, cb=hear)
        request = encode(ReplayRequest(rid, 0, text_subject))
        subject = cluster.subjects.replay(cluster.subjects.partition(rid))
        await cluster.nc.publish(subject, request, reply=reply or cluster.nc.new_inbox())
        await eventually(lambda: detok.malformed.total == 1)
        await worker.write(rid, epoch, 1, stage.ids(TEXT)[1:], Finish(FinishReason.STOP))
        await eventually(stage.listener.has_finished(rid))
        assert detok.stats.replays == 0
    assert [subject for subject in heard if subject != stage.listener.subject] == []


@pytest.mark.parametrize("is_finished", [False, True])
async def test_a_text_larger_than_a_message_is_replayed_in_pieces(
    stage: Stage, is_finished: bool
) -> None:
    worker, cluster = stage.worker(), stage.cluster
    rid = make_rid(cluster)
    ids = (stage.ids(TEXT) * 30_000)[:200_000]
    step = 20_000
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        for start in range(0, len(ids), step):
            is_last = start + step >= len(ids)
            finish = Finish(FinishReason.LENGTH) if is_finished and is_last else None
            await worker.write(rid, epoch, start, ids[start : start + step], finish)
        if is_finished:
            assert unpack_token_ids((await wait_for_done(cluster, rid, 30)).token_ids) == ids
        await eventually(lambda: stage.listener.text(rid) != "", 30)
        detok = DetokClient(cluster.nc, cluster.subjects, "jf.out.y")
        reply = await detok.replay(rid, 0, timeout_s=20)
        while reply.chunk is None:
            reply = await detok.replay(rid, 0, timeout_s=20)
    assert reply.chunk.token_ids == ids
    assert reply.chunk.text == stage.tokenizer.decode(ids)
    assert (reply.chunk.finish is not None) == is_finished
    assert reply.reply == make_reply(stage.listener.subject, rid)
