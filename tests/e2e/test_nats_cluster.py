"""Three nats-servers: one of them dies under load, and nothing is lost, repeated or left out."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from jetflock.commands.setup import Names
from jetflock.commands.setup import _make as make_names
from shared.admin.stream_changes import change_replicas
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import Looks
from tests.nats_cluster import ClusteredServer, NatsCluster

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_STREAMS = 4
NUM_TOKENS = 200  # 4 s
ELECTION_S = 20.0  # servers choose a new leader after 4 to 9 s without one
NUM_LONG_TOKENS = 750  # longer than that
LED = ("the token log", "the queue", "jetstream", "the heartbeats", "the leases")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    nats = NatsCluster(tmp_path / "nats")
    async with RoleStack(
        tmp_path, "--replicas", "3", nats=nats, config=ClusterConfig(replicas=3)
    ) as running:
        yield running


async def test_a_role_waits_until_its_servers_have_a_leader(tmp_path: Path) -> None:
    nats = NatsCluster(tmp_path / "nats")
    try:
        nats.start_one(nats.servers[0])  # alone it has no quorum
        await start_role_before(nats, lambda: bool(connections(nats)))
    finally:
        nats.kill()


async def test_a_role_waits_until_a_peer_has_joined(tmp_path: Path) -> None:
    """Two servers of three have a quorum, and nowhere to place a third replica."""
    nats = NatsCluster(tmp_path / "nats")
    try:
        await asyncio.to_thread(nats.start)
        nats.kill()
        for server in nats.servers[:2]:
            nats.start_one(server)
        await nats.meta_leader()
        await start_role_before(nats, lambda: num_refusals(nats) > 6)  # of several attempts
    finally:
        nats.kill()


async def start_role_before(nats: NatsCluster, was_tried: Callable[[], bool]) -> None:
    """The rest of the servers; the role makes streams, and consumers as for a model."""
    url = nats.servers[0].url
    config = ClusterConfig(nats_url=url, replicas=3, nats_connect_timeout_s=60)
    is_made = asyncio.Event()

    async def start_role() -> None:
        async with open_cluster(config, "test") as cluster:
            await make_names(cluster, None, Names.of(cluster.subjects, "a-model"))
            is_made.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(start_role())
        async for _ in Looks(30, "the role asks for nothing"):
            if was_tried():
                break
        assert not is_made.is_set()
        await asyncio.to_thread(nats.start)
    assert is_made.is_set()


def connections(nats: NatsCluster) -> list[Any]:
    found: list[Any] = nats.servers[0].monitor("connz").get("connections", [])
    return found


def num_refusals(nats: NatsCluster) -> int:
    return sum(
        server.monitor("jsz").get("api", {}).get("errors", 0)
        for server in nats.servers
        if server.is_alive
    )


def servers_of(stack: RoleStack) -> NatsCluster:
    assert isinstance(stack.nats, NatsCluster)
    return stack.nats


async def stream_leader(stack: RoleStack, stream: str) -> ClusteredServer:
    info = await stack.cluster.js.api(f"STREAM.INFO.{stream}")
    return servers_of(stack).named(info["cluster"]["leader"])


async def leader_of(stack: RoleStack, what: str) -> ClusteredServer:
    subjects = stack.cluster.subjects
    match what:
        case "jetstream":
            return await servers_of(stack).meta_leader()
        case "the token log":
            return await stream_leader(stack, subjects.tokens_stream)
        case "the queue":
            return await stream_leader(stack, subjects.requests_stream)
        case "the heartbeats":
            return await stream_leader(stack, f"KV_{subjects.workers_bucket}")
        case _:
            return await stream_leader(stack, f"KV_{subjects.owners_bucket}")


async def start_streams(
    stack: RoleStack, num_tokens: int = NUM_TOKENS
) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    streams = [Stream() for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(
            stream.post(stack.url(), completion_body(seed=seed, max_tokens=num_tokens))
        )
        for seed, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(15)
    assert not any(stream.is_done for stream in streams), "too late to disturb them"
    return streams, tasks


async def expected_texts(stack: RoleStack, num_tokens: int = NUM_TOKENS) -> list[str]:
    streams = await asyncio.gather(
        *(run_stream(stack.url(), seed=seed, max_tokens=num_tokens) for seed in range(NUM_STREAMS))
    )
    return [stream.text for stream in streams]


async def assert_same(
    streams: list[Stream], tasks: list[asyncio.Task[None]], expected: list[str]
) -> None:
    async with asyncio.timeout(90):
        await asyncio.gather(*tasks)
    assert [stream.text for stream in streams] == expected
    assert all(stream.is_done and stream.error is None for stream in streams)


async def post_until_accepted(stack: RoleStack) -> tuple[dict[str, Any], float]:
    """A request that is sent again after each 503, and the seconds that took."""
    started = time.monotonic()
    body = completion_body(max_tokens=5, seed=99)
    async with httpx.AsyncClient(timeout=60) as client:
        async for _ in Looks(2 * ELECTION_S, longest_pause_s=0.2):
            response = await client.post(
                f"{stack.url()}/v1/completions", json={**body, "stream": False}
            )
            if response.status_code == 200:
                break
            assert response.status_code == 503, response.text
            assert int(response.headers["Retry-After"]) >= 1
    return response.json(), time.monotonic() - started


@pytest.mark.slow
@pytest.mark.nightly
async def test_the_leader_of_each_is_killed_with_9(stack: RoleStack) -> None:
    """One after the other, as each has come back by then."""
    stack.start_worker(*SCRIPTED)
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    expected = await expected_texts(stack)
    for what in LED:
        streams, tasks = await start_streams(stack)
        killed = await leader_of(stack, what)
        print(f"{what}: {killed.name} leads it, and is killed")
        killed.kill()
        _, accepted_s = await post_until_accepted(stack)
        await assert_same(streams, tasks, expected)
        assert not any("worker_dead" in role.log for role in stack.roles), "a false death"
        gap_s = max(stream.max_gap_s for stream in streams)
        print(f"a new request after {accepted_s:.1f} s, longest gap {gap_s:.1f} s")
        await asyncio.to_thread(stack.nats.start)


@pytest.mark.slow
@pytest.mark.nightly
async def test_two_of_three_are_down_and_one_comes_back(stack: RoleStack) -> None:
    """Without a majority nothing is stored, so nothing is accepted, and what was accepted waits."""
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await expected_texts(stack)
    streams, tasks = await start_streams(stack)
    first, second, _ = servers_of(stack).servers
    first.kill()
    second.kill()
    async with httpx.AsyncClient(timeout=30) as client:
        for _ in range(3):
            response = await client.post(
                f"{stack.url()}/v1/completions", json=completion_body(stream=False, max_tokens=2)
            )
            assert response.status_code == 503, response.text
            assert int(response.headers["Retry-After"]) >= 1
    assert not any(task.done() for task in tasks), "accepted requests wait"
    servers_of(stack).start_one(second)
    await assert_same(streams, tasks, expected)
    await post_until_accepted(stack)


@pytest.mark.slow
@pytest.mark.nightly
async def test_a_follower_that_was_away_rejoins(stack: RoleStack) -> None:
    stack.start_worker(*SCRIPTED)
    await stack.wait_ready(1)
    expected = await expected_texts(stack, NUM_LONG_TOKENS)
    leader = await leader_of(stack, "the token log")
    away = next(server for server in servers_of(stack).servers if server is not leader)
    away.freeze()
    await post_until_accepted(stack)  # whoever was connected to it has left it
    # Of some, the leader may still be sought: leases of partitions, say.
    streams, tasks = await start_streams(stack, NUM_LONG_TOKENS)
    away.thaw()
    await assert_same(streams, tasks, expected)
    await post_until_accepted(stack)  # its return may have made the others vote again
    again, tasks = await start_streams(stack, NUM_LONG_TOKENS)
    leader.kill()  # the one that was away may be asked to lead
    await assert_same(again, tasks, expected)


async def test_streams_get_copies_while_they_are_in_use(tmp_path: Path) -> None:
    nats = NatsCluster(tmp_path / "nats")
    async with RoleStack(tmp_path, "--replicas", "1", nats=nats) as stack:
        stack.start_worker(*SCRIPTED)
        await stack.wait_ready(1)
        stream = Stream()
        body = completion_body(max_tokens=NUM_LONG_TOKENS, seed=0)
        reading = asyncio.create_task(stream.post(stack.url(), body))
        await stream.wait_for_tokens(20)
        wanted = ClusterConfig(nats_url=nats.url, replicas=3, nats_connect_timeout_s=60)
        async with open_cluster(wanted, "test") as cluster:
            changed = await change_replicas(cluster, 60)
            assert set(changed) == set((await cluster.js.api("STREAM.NAMES"))["streams"])
            assert await change_replicas(cluster, 60) == []
        await asyncio.wait_for(reading, 90)
        assert stream.error is None
        assert (stream.is_done, stream.position) == (True, NUM_LONG_TOKENS)
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.get(f"{stack.url()}/v1/streams/{stream.rid}?stream=false")
        assert answer.json()["choices"][0]["text"] == stream.text


async def test_more_copies_than_servers_are_refused(tmp_path: Path) -> None:
    nats = NatsCluster(tmp_path / "nats")
    try:
        await asyncio.to_thread(nats.start)
        config = ClusterConfig(nats_url=nats.url, nats_connect_timeout_s=30)
        async with open_cluster(config, "test"):
            pass
        more = dataclasses.replace(config, replicas=5, nats_connect_timeout_s=2)
        async with open_cluster(more, "test") as cluster:
            with pytest.raises(ConfigError, match="jf_REQUESTS cannot have 5 replicas"):
                await change_replicas(cluster, 10)
    finally:
        nats.kill()
