"""A detokenizer against a real broker and a scripted worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.protocol import Finish, FinishReason
from shared.token_ids import unpack_token_ids
from tests.detok.scripted import (
    Stage,
    eventually,
    make_rid,
    open_stage,
    running_detok,
    wait_for_done,
)
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        yield stage


async def test_streams_text_and_stores_the_result(stage: Stage) -> None:
    worker, listener = stage.worker(), stage.listener
    rid = make_rid(stage.cluster)
    ids = stage.ids("the quick 日本語 🙂 dog")
    async with running_detok(stage.config):
        epoch = await worker.claim(rid)
        for i, token_id in enumerate(ids):
            await worker.write(rid, epoch, i, [token_id])
        await worker.write(rid, epoch, len(ids), [], Finish(FinishReason.STOP, matched=0))
        await eventually(listener.has_finished(rid))
        done = await wait_for_done(stage.cluster, rid)

    assert listener.text(rid) == "the quick 日本語 🙂 dog"
    assert listener.finishes[rid] == Finish(FinishReason.STOP, matched=0)
    assert listener.gaps == []
    assert [i for chunk in listener.chunks for i in chunk.token_ids] == ids
    assert done.text == listener.text(rid)
    assert unpack_token_ids(done.token_ids) == ids
    assert done.reply is not None
    assert done.reply.subject == listener.subject
