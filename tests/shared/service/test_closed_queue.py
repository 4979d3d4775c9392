"""The queue that a service leaves, on three servers: closed is what no leader opens again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jetflock.stream_move import StreamMove
from shared.broker.jetstream import JetStream
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, BrokerUnavailable, ConfigError
from shared.service.move import (
    close_queue,
    is_queue_closed,
    servers_behind_queue,
    settle_closed_queue,
)
from tests.eventually import eventually_async
from tests.nats_cluster import NatsCluster
from tests.stream_leaders import leader_of, make_lead

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ROOM: dict[str, Any] = {"log_max_bytes": 1 << 29, "files_max_bytes": 1 << 28}  # of both sides


@pytest.fixture
async def old(nats: NatsCluster) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats.url, replicas=3, **ROOM)
    async with open_cluster(config, "test") as cluster:
        yield cluster


async def queue_of(cluster: Cluster) -> dict[str, Any]:
    return await cluster.js.api(f"STREAM.INFO.{cluster.subjects.requests_stream}")


async def lead_elsewhere(cluster: Cluster) -> None:
    """Another server leads the queue behind this."""
    leader = (await queue_of(cluster))["cluster"]["leader"]
    await cluster.js.api(f"STREAM.LEADER.STEPDOWN.{cluster.subjects.requests_stream}")

    async def is_led() -> bool:
        try:
            return bool((await queue_of(cluster))["cluster"].get("leader", leader) != leader)
        except BrokerError:
            return False

    await eventually_async(is_led, 30.0)


async def open_again(cluster: Cluster) -> None:
    """As it is for a leader that has not heard."""
    config = (await queue_of(cluster))["config"] | {"max_msg_size": -1}
    await cluster.js.api(f"STREAM.UPDATE.{config['name']}", config)


async def refused(move: StreamMove) -> str:
    """Why nothing is closed; a server that hangs is asked what any may answer, now and then."""
    while True:
        try:
            await move.close(0.5)
        except ConfigError as exc:
            return str(exc)
        except BrokerError:
            continue
        raise AssertionError("it is closed")


async def test_who_leads_while_the_queue_settles_is_asked_again(
    old: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = JetStream.settle

    async def meanwhile(work: Any) -> bool:
        async def settled(js: JetStream, stream: str) -> None:
            await settle(js, stream)
            await work(old)

        with monkeypatch.context() as patched:
            patched.setattr(JetStream, "settle", settled)
            return await settle_closed_queue(old.js, old.subjects)

    assert not await settle_closed_queue(old.js, old.subjects), "it is open"
    await close_queue(old.js, old.subjects)
    assert await settle_closed_queue(old.js, old.subjects)
    assert not await meanwhile(lead_elsewhere)
    assert await settle_closed_queue(old.js, old.subjects)
    assert not await meanwhile(open_again)


async def test_nothing_is_closed_while_a_server_would_not_hear_of_it(
    nats: NatsCluster, old: Cluster
) -> None:
    config = ClusterConfig(nats_url=nats.url, prefix="blue", num_partitions=2, replicas=3, **ROOM)
    async with open_cluster(config, "new", first_level=1) as new:
        move = StreamMove(old, new)
        await move.prepare()
        await move.announce()
        replica = (await queue_of(old))["cluster"]["replicas"][0]["name"]
        nats.named(replica).freeze()
        try:

            async def is_missed() -> bool:
                try:
                    return replica in await servers_behind_queue(old.js, old.subjects)
                except BrokerError:  # it is the one that the test is connected to
                    return False

            await eventually_async(is_missed, 30.0)
            refusal = await refused(move)
            assert f"{replica} does not keep up" in refusal
            assert refusal.endswith("Nothing has moved")
            assert not await is_queue_closed(old.js, old.subjects)
        finally:
            nats.named(replica).thaw()
        await move.close(60.0)
        assert await is_queue_closed(old.js, old.subjects)
        assert await servers_behind_queue(old.js, old.subjects) == []


async def test_a_move_waits_through_a_moment_without_a_leader(
    nats: NatsCluster, old: Cluster
) -> None:
    """Of the bucket that says what level is in force; all else is led by others."""
    meta = f"KV_{old.subjects.meta_bucket}"
    config = ClusterConfig(nats_url=nats.url, prefix="blue", num_partitions=2, replicas=3, **ROOM)
    async with open_cluster(config, "new", first_level=1) as new:
        move = StreamMove(old, new)
        await move.prepare()
        await move.announce()
        killed = nats.named(await leader_of(old.js, meta))
        for name in (await old.js.api("STREAM.NAMES"))["streams"]:
            if name != meta and await leader_of(old.js, name) == killed.name:
                others = (each.name for each in nats.servers if each is not killed)
                await make_lead(old.js, name, next(others))
        killed.kill()
        with pytest.raises(BrokerUnavailable):
            await old.level.read()
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(move.close(60.0))
            await asyncio.to_thread(nats.start)
        assert closing.done()
        assert await is_queue_closed(old.js, old.subjects)
