"""From no worker to two, to one, to none, under streams that do not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.protocol.codec import decode
from shared.protocol.role_cards import WorkerCard, WorkerState
from tests.deploy.local_stack import REAL_ROLES, LocalStack, any_alive
from tests.e2e.role_stack import MODEL_NAME, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body
from tests.eventually import eventually_async
from tests.forked_program import run_program

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

NUM_LONG_TOKENS = 750
LONG = {"seed": 1, "max_tokens": NUM_LONG_TOKENS}  # all of them alike: each tells of the others
FLAGS = (
    "--model-name", MODEL_NAME, "--workers", "0..2", "--log-format", "json",
    "--scripted", "--scripted-token-s", "0.02",
    "--scripted-token-low", "300", "--scripted-token-high", "1200",
    "--max-running", "8", "--ping-interval-s", "0.3", "--shutdown-timeout-s", "0",
    "--scale-interval-s", "0.2", "--scale-target-s", "1", "--scale-up-period-s", "1",
    "--scale-down-period-s", "1", "--scale-down-window-s", "4", "--scale-idle-s", "3",
)  # fmt: skip


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    stack = LocalStack(tmp_path, *FLAGS, program=REAL_ROLES)
    try:
        yield await asyncio.to_thread(stack.start().wait_ready)
    finally:
        stack.kill()


def url(stack: LocalStack) -> str:
    return f"http://127.0.0.1:{stack.port}"


async def models(stack: LocalStack) -> list[str]:
    async with httpx.AsyncClient(timeout=10) as client:
        answer = (await client.get(f"{url(stack)}/v1/models")).json()
    return [model["id"] for model in answer["data"]]


async def ready_cards(cluster: Cluster) -> list[WorkerCard]:
    try:
        entries = await cluster.bucket(cluster.subjects.workers_bucket).entries()
    except BrokerError:  # a loaded machine may take longer than a role would wait
        return []
    cards = [decode(WorkerCard, entry.value) for entry in entries]
    return [card for card in cards if card.state is WorkerState.READY]


def events(stack: LocalStack) -> list[dict[str, Any]]:
    """What `jetflock events` prints."""
    done = run_program("jetflock", "events", "--nats-url", stack.nats_url)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_workers_come_with_the_load_and_go_without_it(stack: LocalStack) -> None:
    async with (
        open_cluster(ClusterConfig(nats_url=stack.nats_url), "test") as cluster,
        asyncio.TaskGroup() as tasks,
    ):
        streams: list[Stream] = []

        def post(**fields: Any) -> Stream:
            streams.append(Stream())
            tasks.create_task(streams[-1].post(url(stack), completion_body(**fields)))
            return streams[-1]

        assert stack.roles("worker") == []
        assert await models(stack) == [MODEL_NAME]
        first = post(**LONG)
        await first.wait_for_tokens(1, timeout_s=60)
        assert first.num_pings > 0, "it waited for a worker, and its client was told"

        for seed in range(20):
            post(seed=seed, max_tokens=25)

        async def two_are_ready() -> bool:
            return len(await ready_cards(cluster)) == 2

        await eventually_async(two_are_ready, 60)

        async def each_has_some() -> bool:
            """Long ones are sent until both have one."""
            await post(**LONG).wait_for_tokens(1)
            await asyncio.sleep(1.5)  # a heartbeat: the short ones are out of the cards
            cards = await ready_cards(cluster)
            return len(cards) == 2 and all(card.num_running for card in cards)

        await eventually_async(lambda: settled(streams[1:21]), 60)
        await eventually_async(each_has_some, 60)
        long_streams = [first, *streams[21:]]
        assert 2 <= len(long_streams) <= 6

        async def one_is_left() -> bool:
            return len(stack.roles("worker")) == 1

        await eventually_async(one_is_left, 60)
        assert handed_over(stack) > 0, "some were not over yet"

    assert all(stream.is_done and stream.error is None for stream in streams)
    assert {stream.position for stream in long_streams} == {NUM_LONG_TOKENS}
    assert len({stream.text for stream in long_streams}) == 1

    async def none_is_left() -> bool:
        return stack.roles("worker") == []

    await eventually_async(none_is_left, 60)
    assert await models(stack) == [MODEL_NAME]
    check_events(events(stack))


def handed_over(stack: LocalStack) -> int:
    """Requests that draining workers gave to others, by their logs."""
    lines = [line[line.index("{") :] for line in stack.err.splitlines() if '"handing_over"' in line]
    return sum(json.loads(line)["num_requests"] for line in lines)


async def settled(streams: list[Stream]) -> bool:
    return all(stream.is_done for stream in streams)


HOST = (
    "--workers", "0..1", "--scale-interval-s", "0.2",
    "--", "--scripted", "--scripted-token-s", "0.02",
    "--scripted-token-low", "300", "--scripted-token-high", "1200",
)  # fmt: skip


def num_workers(host: RoleProcess) -> int:
    return len(psutil.Process(host.pid).children()) if host.is_alive else 0


@pytest.mark.nightly
async def test_two_hosts_share_a_pool_and_one_dies(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        hosts = [stack.start_autoscaler(*HOST) for _ in range(2)]
        await stack.wait_ready(num_workers=0)
        stream = Stream()
        reading = asyncio.create_task(
            stream.post(stack.url(), completion_body(seed=1, max_tokens=300))
        )
        await stream.wait_for_tokens(1, timeout_s=90)
        assert sum(num_workers(host) for host in hosts) == 1, "one request, one worker"
        [busy] = [host for host in hosts if num_workers(host)]
        [idle] = [host for host in hosts if host is not busy]
        [worker] = psutil.Process(busy.pid).children()

        stack.nats.kill()
        stack.nats.start()
        await stream.wait_for_tokens(stream.position + 25, timeout_s=60)
        assert psutil.Process(busy.pid).children() == [worker]
        assert num_workers(idle) == 0, "while nothing is seen nothing is done"

        busy.kill()
        async with asyncio.timeout(120):
            await reading
        assert not any_alive([worker]), "it died with its host"
        assert num_workers(idle) == 1
        assert stream.is_done
        assert stream.error is None
        assert stream.position == 300
        undisturbed = Stream()
        await undisturbed.post(stack.url(), completion_body(seed=1, max_tokens=300))
        assert stream.text == undisturbed.text
        assert idle.stop(timeout_s=30) < 20
        assert idle.process.returncode == 0


def check_events(told: list[dict[str, Any]]) -> None:
    scaled = [(one["num_workers"], one["num_wanted"]) for one in told if one["event"] == "scale"]
    assert scaled == [(0, 1), (1, 2), (2, 1), (1, 0)]
    by_worker: dict[str, list[str]] = {}
    for one in told:
        if one["event"] == "worker":
            by_worker.setdefault(one["worker"], []).append(one["state"])
    states = ["starting", "loading", "ready", "draining", "gone"]
    assert list(by_worker.values()) == [states, states]
