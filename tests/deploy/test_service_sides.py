"""A supervisor follows its service to other streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deploy.local.heralds import WorkerHerald
from deploy.processes.kept_process import Launch
from deploy.scaling.pool_watch import PoolWatch
from deploy.scaling.service_sides import ServiceSides
from jetflock.stream_move import StreamMove
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable
from shared.protocol.codec import encode
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import MoveRecord, WorkerCard, WorkerState
from shared.service.move import MoveRecords
from shared.storage.streams import ensure_consumers
from shared.subjects import new_rid
from tests.eventually import eventually
from tests.frontend.tiny_model import make_bundle, make_card
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

NEW = "blue"


@pytest.fixture
async def old(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


@pytest.fixture
async def new(nats_server: NatsServer, old: Cluster) -> AsyncIterator[Cluster]:
    """The service moves there."""
    config = ClusterConfig(nats_url=nats_server.url, prefix=NEW, num_partitions=2)
    async with open_cluster(config, "test-new") as cluster:
        move = StreamMove(old, cluster)
        await move.prepare()
        await move.announce()
        yield cluster


@pytest.fixture
def card() -> ModelCard:
    return make_card(make_bundle())


@pytest.fixture
async def sides(old: Cluster, new: Cluster, card: ModelCard) -> AsyncIterator[ServiceSides]:
    sides, prefixes = ServiceSides(old), list[str]()

    async def prepare(cluster: Cluster) -> None:
        prefixes.append(cluster.subjects.prefix)
        if prefixes.count(NEW) == 1:
            raise BrokerUnavailable("not at the first time")
        await ensure_consumers(cluster.js, cluster.subjects, card.pool, ack_wait_s=60)

    await prepare(old)
    following = asyncio.create_task(sides.run(old.config, "test", prepare))
    try:
        async with asyncio.timeout(20):
            await sides.settled.wait()
        yield sides
    finally:
        following.cancel()
        await asyncio.wait({following})


async def test_work_runs_on_each_side_while_it_is_there(sides: ServiceSides, old: Cluster) -> None:
    running: set[str] = set()

    async def work(cluster: Cluster) -> None:
        running.add(cluster.subjects.prefix)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(cluster.subjects.prefix)

    working = asyncio.create_task(sides.on_each(work))
    await eventually(lambda: running == {"jf", NEW})
    records = MoveRecords(old.js, "jf")
    over = MoveRecord(NEW, is_over=True)
    await records.put_moved_to(over, (await records.moved_to()).revision)
    await eventually(lambda: running == {NEW})
    working.cancel()
    await asyncio.wait({working})
    assert not running


async def test_what_both_sides_ask_for_is_counted(
    sides: ServiceSides, new: Cluster, old: Cluster, card: ModelCard
) -> None:
    watch = PoolWatch(sides, card.pool, max_running=7)
    for cluster, count in ((old, 1), (new, 2)):
        for _ in range(count):
            request = cluster.subjects.request(card.pool, "interactive", "", new_rid())
            await cluster.js.publish(request, b"x")
        await show_worker(cluster, card, f"of-{cluster.subjects.prefix}")
    seen = (await watch.look({"of-blue": "both"}, set())).snapshots["both"]
    assert seen.num_waiting == 3
    assert (seen.num_ready, seen.num_others) == (2, 1)


async def test_a_death_is_told_on_both_sides(
    sides: ServiceSides, new: Cluster, card: ModelCard
) -> None:
    await show_worker(new, card, "dead")
    heard = await new.nc.subscribe(new.subjects.worker_died)
    await new.nc.flush()
    await WorkerHerald(sides, card).announce_death(Launch([], {}, "dead"), -9)
    assert (await heard.next_msg(timeout=10)).data == b"dead"
    assert await sides.worker_cards() == []


async def show_worker(cluster: Cluster, card: ModelCard, worker: str) -> None:
    shown = WorkerCard(worker, card.pool, card.name, card.revision, WorkerState.READY)
    bucket = cluster.bucket(cluster.subjects.workers_bucket)
    await bucket.put(f"{card.pool}.{worker}", encode(shown))
