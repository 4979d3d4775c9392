"""A worker behind a leaf node: leaf and hub are killed in turn, and streams stay exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.config import ClusterConfig
from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.leaf_nodes import DOMAIN, DomainServer, Hub

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(240)]

NUM_STREAMS = 4
NUM_TOKENS = 150
DOWN_S = 2.0


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


@pytest.fixture
async def stack(hub: Hub, tmp_path: Path) -> AsyncIterator[RoleStack]:
    """Frontend and detokenizer at the hub."""
    config = ClusterConfig(nats_js_domain=DOMAIN)
    async with RoleStack(tmp_path, "--nats-js-domain", DOMAIN, nats=hub, config=config) as running:
        yield running


@pytest.fixture
def leaf(hub: Hub, stack: RoleStack) -> Iterator[DomainServer]:
    leaf = hub.leaf("edge")
    leaf.start()
    yield leaf
    leaf.kill()


def start_worker_at(stack: RoleStack, server: DomainServer) -> RoleProcess:
    stack._flags[1] = server.url
    try:
        return stack.start_worker(*SCRIPTED)
    finally:
        stack._flags[1] = stack.nats.url


@pytest.mark.nightly
async def test_streams_outlive_the_leaf_and_the_hub(stack: RoleStack, leaf: DomainServer) -> None:
    start_worker_at(stack, leaf)
    await stack.wait_ready(1)
    expected = [await run_stream(stack.url(), seed=seed, max_tokens=NUM_TOKENS)
                for seed in range(NUM_STREAMS)]  # fmt: skip
    for server in (leaf, stack.nats, leaf):
        streams = [Stream() for _ in expected]
        running = [
            asyncio.create_task(
                stream.post(stack.url(), completion_body(seed=seed, max_tokens=NUM_TOKENS))
            )
            for seed, stream in enumerate(streams)
        ]
        for stream in streams:
            await stream.wait_for_tokens(10)
        server.kill()
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(90):
            await asyncio.gather(*running)
        assert [stream.text for stream in streams] == [stream.text for stream in expected]
        assert [stream.position for stream in streams] == [NUM_TOKENS] * NUM_STREAMS
    await stack.until_queued(0)  # each was acknowledged, through the leaf
