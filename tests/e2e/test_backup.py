"""All streams are backed up, and restored on another server: what was accepted goes on there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from shared.admin.stream_changes import adopt_restored
from shared.broker.jetstream import JetStream
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError, IncarnationMismatch
from shared.nats_client.connection import open_connection
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import TIMEOUT, Stream, completion_body, run_stream
from tests.nats_server import NatsServer
from tests.stream_backup import back_up, restore

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

NUM_TOKENS = 300


@pytest.mark.nightly
async def test_a_restored_service_goes_on_where_the_backup_was_made(tmp_path: Path) -> None:
    async with RoleStack(tmp_path / "old", "--ack-wait-s", "3") as old:
        worker = old.start_worker(*SCRIPTED)
        await old.wait_ready(1)
        expected = await run_stream(old.url(), max_tokens=NUM_TOKENS, seed=3)
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            body = {"model": MODEL_NAME, "input": "Once", "max_output_tokens": 8}
            kept = (await client.post(f"{old.url()}/v1/responses", json=body)).json()
        stream = Stream()
        reading = asyncio.create_task(
            stream.post(old.url(), completion_body(max_tokens=NUM_TOKENS, seed=3))
        )
        await stream.wait_for_tokens(25)
        for role in old.roles:  # nobody gives anything back
            role.kill()
        await asyncio.gather(reading, return_exceptions=True)
        assert not worker.is_alive
        backups = await back_up(old.cluster.js)

    nats = NatsServer(tmp_path / "nats")
    nats.start()
    async with open_connection(ClusterConfig(nats_url=nats.url), "test") as nc:
        await restore(JetStream(nc), backups)
    config = ClusterConfig(nats_url=nats.url)
    with pytest.raises(IncarnationMismatch, match="jetflock setup --after-restore"):
        async with open_cluster(config, "test"):
            pass
    async with open_connection(config, "test") as nc:
        await adopt_restored(JetStream(nc), config)
    nats.kill()  # the stack starts it
    async with RoleStack(tmp_path / "new", "--ack-wait-s", "3", nats=nats) as new:
        new.start_worker(*SCRIPTED)
        await new.wait_ready(1)
        await stream.resume(new.url())
        assert stream.is_done
        assert stream.text == expected.text
        async with httpx.AsyncClient(timeout=TIMEOUT) as client:
            found = await client.get(f"{new.url()}/v1/responses/{kept['id']}")
        assert found.json()["output"] == kept["output"]
        assert (await run_stream(new.url(), max_tokens=20, seed=3)).text


async def test_streams_of_two_moments_are_refused(tmp_path: Path) -> None:
    """Floors that were read beyond the end of the log: its backup is the older one."""
    old, new = NatsServer(tmp_path / "old"), NatsServer(tmp_path / "new")
    try:
        old.start()
        async with open_cluster(ClusterConfig(nats_url=old.url), "test") as cluster:
            earlier = {each.name: each for each in await back_up(cluster.js)}
            for _ in range(3):
                await cluster.js.publish(cluster.subjects.tokens(0, "worker-x"), b"frame")
            await cluster.bucket(cluster.subjects.floors_bucket).put("0", b"4")
            backups = await back_up(cluster.js)
        mixed = [earlier[b.name] if b.name == "jf_TOKENS" else b for b in backups]
        new.start()
        config = ClusterConfig(nats_url=new.url)
        async with open_connection(config, "test") as nc:
            js = JetStream(nc)
            with pytest.raises(ConfigError, match="restore all streams and buckets"):
                await adopt_restored(js, config)
            await restore(js, mixed)
            with pytest.raises(ConfigError, match="ends at 0, but partition 0 was read up to 4"):
                await adopt_restored(js, config)
            await js.api("STREAM.DELETE.jf_TOKENS")
            await restore(js, [b for b in backups if b.name == "jf_TOKENS"])
            await adopt_restored(js, config)
        async with open_cluster(config, "test"):
            pass
    finally:
        old.kill()
        new.kill()
