"""Streams are made once, and a role refuses to run against ones that do not fit."""

from __future__ import annotations

import pytest

from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import IncarnationMismatch
from shared.streams import ensure_consumers, ensure_streams
from shared.subjects import LANES
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


async def stream_names(nats_server: NatsServer) -> set[str]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        names: list[str] = (await cluster.js.api("STREAM.NAMES"))["streams"]
    return set(names)


async def test_making_them_twice_changes_nothing(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=8)
    async with open_cluster(config, "test") as cluster:
        assert cluster.subjects.num_partitions == 8
        before = await cluster.bucket(cluster.subjects.meta_bucket).get("incarnation")
        await ensure_streams(cluster.js, config)
        assert await cluster.bucket(cluster.subjects.meta_bucket).get("incarnation") == before


async def test_the_number_of_partitions_comes_from_the_streams(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with open_cluster(ClusterConfig(nats_url=url, num_partitions=8), "test"):
        pass
    async with open_cluster(ClusterConfig(nats_url=url), "test") as cluster:
        assert cluster.subjects.num_partitions == 8
    with pytest.raises(IncarnationMismatch, match="made with 8"):
        async with open_cluster(ClusterConfig(nats_url=url, num_partitions=4), "test"):
            pass


async def test_prefixes_live_side_by_side(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with open_cluster(ClusterConfig(nats_url=url, prefix="a", num_partitions=1), "test"):
        pass
    async with open_cluster(ClusterConfig(nats_url=url, prefix="b", num_partitions=2), "test"):
        pass
    assert {"a_TOKENS", "b_TOKENS", "KV_a_leases", "KV_b_leases"} <= await stream_names(nats_server)


@pytest.mark.parametrize("stream", ["jf_TOKENS", "jf_REQUESTS"])
async def test_a_stream_that_was_made_again_is_refused(
    nats_server: NatsServer, stream: str
) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        await cluster.js.api(f"STREAM.DELETE.{stream}")
    with pytest.raises(IncarnationMismatch, match="made again"):
        async with open_cluster(config, "test"):
            pass


async def test_a_retention_that_is_too_short_is_refused(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with open_cluster(ClusterConfig(nats_url=url, max_deadline_s=60), "test"):
        pass
    with pytest.raises(IncarnationMismatch, match="max_age"):
        async with open_cluster(ClusterConfig(nats_url=url, max_deadline_s=600), "test"):
            pass


@pytest.mark.parametrize(
    ("field", "value"), [("discard", "old"), ("allow_direct", False), ("subjects", ["jf.own.*.*"])]
)
async def test_a_stream_that_breaks_a_promise_is_refused(
    nats_server: NatsServer, field: str, value: object
) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        existing = (await cluster.js.api("STREAM.INFO.jf_TOKENS"))["config"]
        await cluster.js.api("STREAM.UPDATE.jf_TOKENS", existing | {field: value})
    with pytest.raises(IncarnationMismatch, match=field):
        async with open_cluster(config, "test"):
            pass


async def test_consumers_never_give_up_on_a_request(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        for ack_wait_s in (8.0, 9.0):
            await ensure_consumers(cluster.js, cluster.subjects, "pool", ack_wait_s)
        names = cluster.subjects.consumers("pool")
        assert names[:2] == ["pool_interactive", "pool_interactive-1"]
        for lane, name in zip(LANES, names, strict=True):
            info = await cluster.js.api(f"CONSUMER.INFO.jf_REQUESTS.{name}")
            config = info["config"]
            assert config["filter_subject"] == f"jf.req.pool.{lane.token}"
            assert config["max_deliver"] == -1
            assert config["ack_wait"] == 9_000_000_000
            assert config["max_ack_pending"] == 100_000
            assert "inactive_threshold" not in config
