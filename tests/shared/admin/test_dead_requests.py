"""What is kept of requests that were given up, and what makes room for the next ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from shared.admin.dead_requests import DeadRequests
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import LimitReached
from shared.protocol.dead import DeadRequest
from shared.protocol.prompt_object import dead_prompt_object
from shared.subjects import new_rid
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

ROOM_BYTES = 7000


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, dead_max_bytes=ROOM_BYTES)
    async with open_cluster(config, "test") as cluster:
        yield cluster


def make_dead(num_bytes: int, age_s: float = 0.0, prompt_object: str = "") -> DeadRequest:
    died_at = time.time() - age_s
    request = b"x" * num_bytes
    return DeadRequest(
        new_rid(), "pool", "batch", "why", (), 1.0, died_at, request, prompt_object=prompt_object
    )


async def kept(cluster: Cluster) -> list[str]:
    return [stored.dead.rid for stored in await DeadRequests(cluster).all()]


async def test_the_oldest_make_room_and_go_with_their_prompts(cluster: Cluster) -> None:
    dead, catalog = DeadRequests(cluster), ModelCatalog(cluster)
    name = dead_prompt_object(new_rid())
    await catalog.put_object(name, b"a long prompt")
    requests = [make_dead(1000, prompt_object=name), *(make_dead(1000) for _ in range(3))]
    for request in requests:
        assert await dead.put(request) == []
    large = make_dead(3500)
    dropped = await dead.put(large)
    rids = [request.rid for request in requests]
    assert [stored.dead.rid for stored in dropped] == rids[:2]
    assert await kept(cluster) == [*rids[2:], large.rid]
    objects = await cluster.js.api(f"STREAM.INFO.OBJ_{cluster.subjects.objects_bucket}")
    assert objects["state"]["bytes"] < len(b"a long prompt") + 500, "only its deletion is noted"


async def test_what_is_larger_than_all_is_refused(cluster: Cluster) -> None:
    with pytest.raises(LimitReached):
        await DeadRequests(cluster).put(make_dead(ROOM_BYTES))


async def test_the_too_old_are_dropped_beside_one_that_cannot_be_read(cluster: Cluster) -> None:
    dead = DeadRequests(cluster)
    await cluster.js.publish(cluster.subjects.dead("pool"), b"of a later version")
    old, young = make_dead(10, age_s=3700), make_dead(10, age_s=10)
    for request in (old, young):
        await dead.put(request)
    assert [stored.dead.rid for stored in await dead.drop_older_than(3600)] == [old.rid]
    assert await kept(cluster) == [young.rid]


async def test_two_may_drop_the_same(cluster: Cluster) -> None:
    dead = DeadRequests(cluster)
    await dead.put(make_dead(10))
    [stored] = await dead.all()
    await dead.drop(stored)
    await dead.drop(stored)
    assert await kept(cluster) == []
