"""A detokenizer that meets what it does not know says nothing that could be wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detok.config import DetokConfig
from detok.detokenizer import Detokenizer
from detok.replay_service import read_done
from shared.cluster import open_cluster
from shared.errors import OutdatedBuild
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import LevelRecord
from tests.detok.scripted import Stage, make_rid, running_detok
from tests.eventually import eventually

pytestmark = pytest.mark.integration

NEXT = FEATURE_LEVEL + 1
STOP = Finish(FinishReason.STOP)


async def write_newer(stage: Stage, rid: str) -> int:
    """What a worker of a newer build may claim by."""
    body: dict[str, Any] = {"t": "joint claim", "workers": ["a", "b"], "level": NEXT, "v": 2}
    subject = stage.cluster.subjects.ownership(rid)
    return (await stage.cluster.js.publish(subject, msgspec.msgpack.encode(body))).seq


async def test_behind_a_claim_that_it_cannot_read_it_says_nothing_and_leaves(stage: Stage) -> None:
    """For it the old claim would count on, and with it the words of a worker that was fenced."""
    worker, listener, rid = stage.worker(), stage.listener, make_rid(stage.cluster)
    ids = stage.ids("the quick brown fox")
    config = DetokConfig(nats_url=stage.config.nats_url)
    async with open_cluster(config, "detok") as cluster:
        detok = Detokenizer(cluster, config)
        leaving = asyncio.create_task(detok.run())
        await eventually(lambda: detok.owned == [0, 1])
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:2])
        await eventually(lambda: listener.text(rid) != "")
        said = listener.text(rid)
        revision = (await stage.cluster.level.read()).revision
        await stage.cluster.level.put(LevelRecord(NEXT), revision)
        await write_newer(stage, rid)
        await worker.write(rid, epoch, 2, ids[2:], STOP)
        with pytest.raises(OutdatedBuild):
            await asyncio.wait_for(leaving, 20)
    assert listener.text(rid) == said
    assert await read_done(stage.cluster, rid) is None


async def test_a_level_that_is_not_in_force_stops_nobody(stage: Stage) -> None:
    worker, listener, rid = stage.worker(), stage.listener, make_rid(stage.cluster)
    ids = stage.ids("the quick brown fox")
    async with running_detok(stage.config) as detok:
        epoch = await worker.claim(rid)
        await worker.write(rid, epoch, 0, ids[:2])
        await write_newer(stage, rid)
        await worker.write(rid, epoch, 2, ids[2:], STOP)
        await eventually(listener.has_finished(rid))
        assert listener.text(rid) == "the quick brown fox"
        assert detok.owned == [0, 1]
