"""`jetflock serve` starts and stops workers while its service moves, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError
from tests.deploy.local_stack import REAL_ROLES, LocalStack
from tests.e2e.migrating import NEW, migrate
from tests.e2e.streams import Stream, completion_body, run_stream
from tests.e2e.test_autoscale import FLAGS, url
from tests.eventually import eventually_async
from tests.nats_server import NatsServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

LONG: dict[str, Any] = {"seed": 1, "max_tokens": 1500}  # 30 s
SHORT: dict[str, Any] = {"seed": 2, "max_tokens": 20}


@pytest.fixture
async def stack(tmp_path: Path, nats_server: NatsServer) -> AsyncIterator[LocalStack]:
    """Its own nats-server would have room for one side alone."""
    stack = LocalStack(tmp_path, *FLAGS, "--nats-url", nats_server.url, program=REAL_ROLES)
    try:
        yield await asyncio.to_thread(stack.start().wait_ready)
    finally:
        stack.kill()


async def num_workers(cluster: Cluster) -> int:
    return len(await cluster.bucket(cluster.subjects.workers_bucket).entries())


@pytest.mark.nightly
async def test_serve_follows_its_service(stack: LocalStack, nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as old:
        short = await run_stream(url(stack), **SHORT)
        stream = Stream()
        running = asyncio.create_task(stream.post(url(stack), completion_body(**LONG)))
        await stream.wait_for_tokens(20)
        returned, said = await migrate(nats_server.url, "--num-partitions", "2", "--no-wait")
        assert returned == 0, said
        # The only worker is busy on the old side: another one is started for what waits here.
        over_there = await run_stream(url(stack), **SHORT)
        assert over_there.text == short.text
        assert not stream.is_done
        async with asyncio.timeout(120):
            await running
        assert stream.is_done
        assert stream.error is None

        new_config = ClusterConfig(nats_url=nats_server.url, prefix=NEW)
        async with open_cluster(new_config, "test-new") as new:

            async def has_no_workers() -> bool:
                return await num_workers(old) + await num_workers(new) == 0

            await eventually_async(has_no_workers, 60)
            again = await run_stream(url(stack), **SHORT)  # one is started for it
            assert again.text == short.text
            assert await num_workers(old) == 0
            await old.js.api(f"STREAM.PURGE.{old.subjects.results_stream}")
            returned, said = await migrate(nats_server.url, "--delete-old")
            assert returned == 0, said
            with pytest.raises(BrokerError, match="stream not found"):
                await old.js.api(f"STREAM.INFO.{old.subjects.requests_stream}")

            async def has_none_there() -> bool:
                return await num_workers(new) == 0

            await eventually_async(has_none_there, 60)
        assert (await run_stream(url(stack), **SHORT)).text == short.text
