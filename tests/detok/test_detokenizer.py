"""A detokenizer against a real broker and a scripted worker."""

from __future__ import annotations

import pytest

from detok.replay_service import read_done
from shared.catalog.model_catalog import ModelCatalog
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End, TokenEntry
from shared.protocol.reply import TextParams
from shared.protocol.token_ids import unpack_token_ids
from shared.subjects import new_rid
from tests.detok.scripted import (
    Stage,
    make_bundle,
    make_reply,
    make_rid,
    make_tokenizer,
    running_detok,
    wait_for_done,
)
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration


async def test_streams_text_and_stores_the_result(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("the quick 日本語 🙂 dog")
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        for i, token_id in enumerate(ids):
            await worker.write(rid, epoch, i, [token_id])
        await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP, matched=0))
        await eventually(listener.has_finished(rid))
        done = await wait_for_done(stage.cluster, rid)
        await eventually(lambda: detok.stats.done_written == 1)

    assert listener.text(rid) == "the quick 日本語 🙂 dog"
    assert listener.finishes[rid] == Finish(FinishReason.STOP, matched=0)
    assert listener.gaps == []
    assert [i for chunk in listener.chunks for i in chunk.token_ids] == ids
    assert [chunk.position for chunk in listener.chunks][-1] == len(ids)
    assert done.text == listener.text(rid)
    assert done.finish == listener.finishes[rid]
    assert unpack_token_ids(done.token_ids) == ids
    assert done.reply == make_reply(listener.subject, rid)
    assert detok.stats.tokens == len(ids)


async def test_frames_that_wait_together_go_out_together(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rids = [make_rid(stage.cluster, partition) for partition in (0, 1, 0)]
    ids = stage.ids("the lazy dog")
    epochs = [await worker.claim(rid) for rid in rids]
    for i, token_id in enumerate(ids):
        for rid, epoch in zip(rids, epochs, strict=True):
            await worker.write(rid, epoch, i, [token_id])
    async with running_detok(stage.config) as detok:
        for rid in rids:
            await eventually(listener.has_text(rid, "the lazy dog"))
        # All that was there when each partition was caught up: one chunk a request.
        assert len(listener.chunks) == 3
        assert detok.stats.text_frames <= 2


async def test_a_stop_string_is_cut_and_never_shown(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("jumps over END")
    async with running_detok(stage.config):
        epoch = await worker.claim(rid, text=TextParams(stop=("END",)))
        for i, token_id in enumerate(ids[:-1]):
            await worker.write(rid, epoch, i, [token_id])
        finish = Finish(FinishReason.STOP, matched="END")
        await worker.write(rid, epoch, len(ids) - 1, ids[-1:], finish)
        await eventually(listener.has_finished(rid))

    assert listener.text(rid) == "jumps over "
    assert all("E" not in chunk.text for chunk in listener.chunks)


async def test_what_was_held_back_is_shown_at_another_finish(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("over EN")
    async with running_detok(stage.config):
        epoch = await worker.claim(rid, text=TextParams(stop=("END",)))
        await worker.write(rid, epoch, 0, ids)
        await eventually(listener.has_text(rid, "over "))
        await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.LENGTH))
        await eventually(listener.has_finished(rid))
        done = await wait_for_done(stage.cluster, rid)
    assert listener.text(rid) == done.text == "over EN"


async def test_an_end_before_any_claim_is_answered(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    reply = make_reply(stage.listener.subject, rid)
    async with running_detok(stage.config):
        end = End(0, FinishReason.CANCEL, "frontend", reply=reply)
        assert await stage.cluster.ownership.end(rid, end) == 0, "somebody claimed it"
        await eventually(stage.listener.has_finished(rid))
        done = await wait_for_done(stage.cluster, rid)
    assert (done.text, done.token_ids) == ("", b"")
    assert done.finish == stage.listener.finishes[rid] == Finish(FinishReason.CANCEL)
    assert done.reply == reply


async def test_an_end_of_nobody_still_gets_its_result(stage: Stage) -> None:
    rid = make_rid(stage.cluster)
    async with running_detok(stage.config):
        await stage.cluster.ownership.end(rid, End(0, FinishReason.DEADLINE, "w", "too late"))
        done = await wait_for_done(stage.cluster, rid)
    assert done.finish == Finish(FinishReason.DEADLINE, message="too late")
    assert done.reply is None


async def test_an_end_finishes_a_running_request(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("brown fox")
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids)
        await stage.cluster.ownership.end(rid, End(0, FinishReason.CANCEL, "frontend"))
        await worker.write(rid, epoch, len(ids), stage.ids(" jumps"))
        done = await wait_for_done(stage.cluster, rid)
        await eventually(listener.has_finished(rid))
    assert done.text == listener.text(rid) == "brown fox"
    assert done.finish == listener.finishes[rid] == Finish(FinishReason.CANCEL)


async def test_bad_messages_in_the_log_are_counted_and_skipped(stage: Stage) -> None:
    worker, listener, cluster = stage.worker(), stage.listener, stage.cluster
    subjects = cluster.subjects
    rid, other = make_rid(cluster), make_rid(cluster)
    ids = stage.ids("fox")
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await cluster.js.publish(subjects.tokens(0, worker.id), b"\xc1 nonsense")
        await cluster.js.publish(subjects.ownership(other), b"")
        await cluster.js.publish(subjects.ownership_of_partition(0).replace("*", "x"), b"\x80")
        # A frame in the name of another worker, and a request of another partition.
        stolen = stage.worker("thief")
        stolen.id = worker.id
        await cluster.js.publish(subjects.tokens(0, "thief-1"), b"\x94\x02\xa1w\x01\x90")
        wrong = [TokenEntry(rid, epoch, 0, ids), TokenEntry(make_rid(cluster, 1), 1, 0, [5])]
        await worker.write_entries([*wrong, TokenEntry("no rid", 1, 0, [5])])
        await worker.write(rid, epoch, len(ids), [1 << 31, 999_999], Finish(FinishReason.STOP))
        await eventually(listener.has_finished(rid))
        assert detok.malformed.total == 6
    assert listener.text(rid) == "fox"


async def test_a_hole_is_filled_by_the_resend(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("over the lazy dog")
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:2])
        await worker.write(rid, epoch, 4, ids[4:])
        await eventually(lambda: detok.stats.holes == 1)
        await worker.write(rid, epoch, 2, ids[2:4])
        await worker.write(rid, epoch, 4, ids[4:])
        await eventually(listener.has_text(rid, "over the lazy dog"))
    assert listener.gaps == []


async def test_text_waits_for_its_tokenizer_and_keeps_nobody_waiting(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    late = make_bundle(make_tokenizer(vocab_size=280))
    assert late.content_hash != stage.tokenizer_hash
    late_worker = stage.worker()
    late_worker._tokenizer_hash = late.content_hash
    rid, late_rid = make_rid(stage.cluster), make_rid(stage.cluster)
    ids = stage.ids("fox")
    async with running_detok(stage.config):
        late_epoch = await late_worker.claim(late_rid)
        await late_worker.write(late_rid, late_epoch, 0, late.tokenizer().encode("dog").ids)
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids, Finish(FinishReason.STOP))
        await eventually(listener.has_finished(rid))
        await wait_for_done(stage.cluster, rid)
        assert listener.text(late_rid) == ""
        await ModelCatalog(stage.cluster).put_bundle(late)
        await eventually(listener.has_text(late_rid, "dog"))


async def test_a_broker_that_restarts_in_the_middle(stage: Stage, nats_server: NatsServer) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("the quick brown fox jumps over the lazy dog")
    half = len(ids) // 2
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        for i in range(half):
            await worker.write(rid, epoch, i, [ids[i]])
        await eventually(lambda: listener.text(rid) != "")
        nats_server.kill()
        await eventually(lambda: not stage.cluster.nc.is_connected)
        nats_server.start()
        await eventually(lambda: stage.cluster.nc.is_connected)
        for i in range(half, len(ids)):
            await worker.write(rid, epoch, i, [ids[i]])
        await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP))
        done = await wait_for_done(stage.cluster, rid)
        # Core messages may be lost with the connection: then the listener has a gap, no more.
        await eventually(lambda: rid in listener.finishes or bool(listener.gaps))
    assert done.text == "the quick brown fox jumps over the lazy dog"


async def test_a_broker_that_stays_away_longer_than_a_lease(
    stage: Stage, nats_server: NatsServer
) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("the quick brown fox")
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:2])
        await eventually(lambda: listener.text(rid) != "")
        nats_server.kill()
        await eventually(lambda: detok.owned == [])
        nats_server.start()
        await eventually(lambda: detok.owned == [0, 1])
        await worker.write(rid, epoch, 2, ids[2:], Finish(FinishReason.STOP))
        done = await wait_for_done(stage.cluster, rid)
        await eventually(listener.has_finished(rid))
    assert done.text == listener.text(rid) == "the quick brown fox"


async def test_a_result_that_is_refused_is_written_when_there_is_room(stage: Stage) -> None:
    worker, cluster = stage.worker(), stage.cluster
    rid = make_rid(cluster)
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.results_stream}")
    config = info["config"]
    await cluster.js.api(f"STREAM.UPDATE.{config['name']}", config | {"max_bytes": 1})
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, stage.ids("fox"), Finish(FinishReason.STOP))
        await eventually(stage.listener.has_finished(rid))
        await time_to_err(0.5)
        assert await read_done(cluster, rid) is None
        await cluster.js.api(f"STREAM.UPDATE.{config['name']}", config)
        assert (await wait_for_done(cluster, rid)).text == "fox"


async def test_many_requests_at_once(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rids = [new_rid() for _ in range(50)]
    ids = stage.ids("the quick brown fox")
    async with running_detok(stage.config):
        epochs = {rid: await worker.claim(rid) for rid in rids}
        for partition in (0, 1):
            mine = [rid for rid in rids if stage.cluster.subjects.partition(rid) == partition]
            for i, token_id in enumerate(ids):
                finish = Finish(FinishReason.STOP) if i == len(ids) - 1 else None
                await worker.write_entries(
                    [TokenEntry(rid, epochs[rid], i, [token_id], finish) for rid in mine]
                )
        for rid in rids:
            await eventually(listener.has_finished(rid))
            await wait_for_done(stage.cluster, rid)
    assert {listener.text(rid) for rid in rids} == {"the quick brown fox"}
