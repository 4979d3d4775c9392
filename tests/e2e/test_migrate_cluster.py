"""A service on three nats-servers moves while the leader of its queue is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.service.move import is_queue_closed
from tests.e2e.migrating import is_announced, migrate, start_migrate
from tests.e2e.role_stack import SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.eventually import Looks, eventually_async
from tests.nats_cluster import NatsCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

NUM_STREAMS = 4
NUM_LONG_TOKENS = 750  # longer than servers take to choose a leader
MAX_RUNS = 10


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[RoleStack]:
    nats = NatsCluster(tmp_path / "nats")
    # Both sets of streams have room.
    config = ClusterConfig(replicas=3, log_max_bytes=1 << 29, files_max_bytes=1 << 28)
    async with RoleStack(tmp_path, "--replicas", "3", nats=nats, config=config) as running:
        yield running


async def kill_leader(stack: RoleStack, when: Literal["announced", "closed"]) -> None:
    """Of the old queue, in the moment when the move has come so far."""
    js, subjects = stack.cluster.js, stack.cluster.subjects

    async def has_come_so_far() -> bool:
        if when == "announced":
            return await is_announced(stack)
        return await is_queue_closed(js, subjects)

    await eventually_async(has_come_so_far, 60)
    info = await js.api(f"STREAM.INFO.{subjects.requests_stream}")
    assert isinstance(stack.nats, NatsCluster)
    stack.nats.named(info["cluster"]["leader"]).kill()


async def keep_asking(urls: list[str], over: asyncio.Event) -> list[list[dict[str, Any]]]:
    """The same request of all frontends at once, under one key, until each has an answer."""
    answers: list[list[dict[str, Any]]] = []
    async with httpx.AsyncClient(timeout=60) as client:
        while not over.is_set():
            key = f"key-{len(answers)}"
            answers.append(await asyncio.gather(*(answered(client, url, key) for url in urls)))
    return answers


async def answered(client: httpx.AsyncClient, url: str, key: str) -> dict[str, Any]:
    body = completion_body(seed=99, max_tokens=20, stream=False)
    async for _ in Looks(120, longest_pause_s=0.2):
        response = await client.post(
            f"{url}/v1/completions", json=body, headers={"Idempotency-Key": key}
        )
        if response.status_code == 200:
            break
        assert response.status_code == 503, response.text
    found: dict[str, Any] = response.json()
    return found


async def migrate_until_done(stack: RoleStack) -> None:
    said = ""
    for _ in range(MAX_RUNS):
        returned, said = await migrate(stack.nats.url, "--num-partitions", "2")
        if returned == 0:
            return
        print(said)
    raise AssertionError(said)


@pytest.mark.parametrize("when", ["announced", "closed"])
@pytest.mark.nightly
async def test_the_leader_of_the_old_queue_is_killed(
    stack: RoleStack, when: Literal["announced", "closed"]
) -> None:
    other = stack.start_frontend()
    for _ in range(2):
        stack.start_worker(*SCRIPTED)
    await stack.wait_ready(2)
    urls = [stack.url(), stack.url(other)]
    expected = await asyncio.gather(
        *(run_stream(urls[0], seed=i, max_tokens=NUM_LONG_TOKENS) for i in range(NUM_STREAMS))
    )
    over = asyncio.Event()
    asking = asyncio.create_task(keep_asking(urls, over))
    streams = [Stream() for _ in range(NUM_STREAMS)]
    running = [
        asyncio.create_task(
            stream.post(urls[i % 2], completion_body(seed=i, max_tokens=NUM_LONG_TOKENS))
        )
        for i, stream in enumerate(streams)
    ]
    for stream in streams:
        await stream.wait_for_tokens(20)

    first = await start_migrate(stack.nats.url, "--num-partitions", "2")
    await kill_leader(stack, when)
    said, _ = await first.communicate()
    print(said.decode())
    await asyncio.to_thread(stack.nats.start)
    await migrate_until_done(stack)

    async with asyncio.timeout(90):
        await asyncio.gather(*running)
    over.set()
    answers = await asking
    assert [stream.text for stream in streams] == [stream.text for stream in expected]
    assert all(stream.is_done and stream.error is None for stream in streams)
    assert len({each["choices"][0]["text"] for pair in answers for each in pair}) == 1
    assert all(one["id"] == two["id"] for one, two in answers), "one request a key"
    with pytest.raises(BrokerError, match="size exceeds"):
        await stack.cluster.js.publish(stack.cluster.subjects.request("p", "q", "", "r"), b"xx")
