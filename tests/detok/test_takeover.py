"""Partitions change hands: by SIGTERM, kill -9, a stopped process, a newcomer."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from detok import partition_share
from detok.replay_service import read_done
from shared.protocol.finish import Finish, FinishReason
from tests.detok.scripted import (
    Stage,
    make_rid,
    owners,
    running_detok,
    start_detok_process,
    wait_for_done,
    wait_for_owners,
)
from tests.eventually import eventually
from tests.forked_program import ForkedProgram
from tests.freezing import freeze, thaw
from tests.time_to_err import time_to_err

pytestmark = pytest.mark.integration

TEXT = "the quick brown fox jumps over the lazy dog 日本語 🙂"


@contextlib.contextmanager
def detok_process(nats_url: str) -> Iterator[ForkedProgram]:
    process = start_detok_process(nats_url)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_a_bare_detokenizer_owns_everything_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_share, "_ORPHAN_S", 600.0)  # it waits for no rival to take it
    async with running_detok(stage.config):
        await wait_for_owners(stage.cluster, set())


@pytest.mark.timed
async def test_sigterm_hands_over_in_the_middle_of_a_stream(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    half = len(ids) // 2
    with detok_process(stage.config.nats_url) as process:
        await wait_for_owners(stage.cluster, set())
        first_owners = set((await owners(stage.cluster)).values())
        epoch = await worker.claim(rid)
        for i in range(half):
            await worker.write(rid, epoch, i, [ids[i]])
        await eventually(lambda: len(listener.text(rid)) > 5)
        async with running_detok(stage.config):
            process.send_signal(signal.SIGTERM)
            for i in range(half, len(ids)):
                await worker.write(rid, epoch, i, [ids[i]])
            assert await wait_for_owners(stage.cluster, first_owners) < 1.5
            await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP))
            await eventually(listener.has_finished(rid))
            assert process.wait(20) == 0
            done = await wait_for_done(stage.cluster, rid)
    assert listener.text(rid) == done.text == TEXT
    assert listener.gaps == []


@pytest.mark.timed
async def test_after_kill_9_the_next_one_says_the_same(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    half = len(ids) // 2
    with detok_process(stage.config.nats_url) as process:
        await wait_for_owners(stage.cluster, set())
        first_owners = set((await owners(stage.cluster)).values())
        epoch = await worker.claim(rid)
        for i in range(half):
            await worker.write(rid, epoch, i, [ids[i]])
        await eventually(lambda: len(listener.text(rid)) > 5)
        process.kill()
        async with running_detok(stage.config):
            for i in range(half, len(ids)):
                await worker.write(rid, epoch, i, [ids[i]])
            await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP))
            assert await wait_for_owners(stage.cluster, first_owners) < 3.0
            await eventually(listener.has_finished(rid))
            done = await wait_for_done(stage.cluster, rid)
    assert listener.text(rid) == done.text == TEXT
    assert listener.gaps == []


async def test_what_finished_while_nobody_read_is_still_answered(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    epoch = await worker.claim(rid)
    await worker.write(rid, epoch, 0, stage.ids(TEXT), Finish(FinishReason.STOP))
    async with running_detok(stage.config):
        await eventually(listener.has_finished(rid))
        assert (await wait_for_done(stage.cluster, rid)).text == TEXT


async def test_a_stopped_detokenizer_says_nothing_when_it_wakes_up(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids(TEXT)
    with detok_process(stage.config.nats_url) as process:
        await wait_for_owners(stage.cluster, set())
        first_owners = set((await owners(stage.cluster)).values())
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:3])
        await eventually(lambda: len(listener.text(rid)) > 1)
        freeze(process.pid)
        async with running_detok(stage.config) as detok:
            await wait_for_owners(stage.cluster, first_owners)
            await worker.write(rid, epoch, 3, ids[3:])
            await eventually(listener.has_text(rid, TEXT))
            num_chunks = len(listener.chunks)
            thaw(process.pid)
            await time_to_err(1.0)
            assert len(listener.chunks) == num_chunks  # though it has folded the same
            assert not first_owners & {detok.id}
            await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP))
            await wait_for_done(stage.cluster, rid)
    assert listener.text(rid) == TEXT


async def test_two_share_evenly_and_nothing_is_lost_on_the_way(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rids = [make_rid(stage.cluster, partition) for partition in (0, 1)]
    ids = stage.ids(TEXT)
    async with running_detok(stage.config) as first:
        await eventually(lambda: first.owned == [0, 1])
        epochs = [await worker.claim(rid) for rid in rids]
        for rid, epoch in zip(rids, epochs, strict=True):
            await worker.write(rid, epoch, 0, ids[:4])
        async with running_detok(stage.config) as second:
            await eventually(lambda: (len(first.owned), len(second.owned)) == (1, 1))
            for rid, epoch in zip(rids, epochs, strict=True):
                await worker.write(rid, epoch, 4, ids[4:8])
        await eventually(lambda: first.owned == [0, 1])
        for rid, epoch in zip(rids, epochs, strict=True):
            await worker.write(rid, epoch, 8, ids[8:], Finish(FinishReason.STOP))
            await eventually(listener.has_finished(rid))
    assert [listener.text(rid) for rid in rids] == [TEXT, TEXT]
    assert listener.gaps == []


async def test_catching_up_repeats_no_chunk_by_chunk(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    epoch = await worker.claim(rid)
    ids = stage.ids("fox ") * 100
    for i, token_id in enumerate(ids):
        await worker.write(rid, epoch, i, [token_id])
    async with running_detok(stage.config):
        await eventually(listener.has_text(rid, "fox " * 100))
    assert len(listener.chunks) == 1
    assert await read_done(stage.cluster, rid) is None
