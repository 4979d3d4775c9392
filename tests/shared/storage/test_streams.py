"""Streams are made once, and a role refuses to run against ones that do not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError, IncarnationMismatch
from shared.storage.streams import ensure_consumers, ensure_streams
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
    assert {"a_TOKENS", "b_TOKENS", "KV_a_owners", "KV_b_owners"} <= await stream_names(nats_server)


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


@pytest.mark.parametrize(
    ("field", "stream", "flags"),
    [
        ("max_deadline_s", "jf_TOKENS", "--max-deadline-s or --resume-window-s"),
        ("resume_window_s", "jf_(TOKENS|RESULTS)", "--resume-window-s"),
        ("response_ttl_s", "jf_RESPONSES", "--response-ttl-s"),
        ("files_ttl_s", "jf_BATCH", "--files-ttl-s"),
        ("dead_ttl_s", "jf_DEAD", "--dead-ttl-s"),
    ],
)
async def test_a_retention_that_is_too_short_is_refused(
    nats_server: NatsServer, field: str, stream: str, flags: str
) -> None:
    """Of streams that were made by another configuration; what decides about it is named."""
    shorter = ClusterConfig(nats_url=nats_server.url)
    longer = dataclasses.replace(shorter, **{field: 2 * getattr(shorter, field)})
    async with open_cluster(shorter, "test"):
        pass
    with pytest.raises(IncarnationMismatch, match=rf"{stream} has max_age.*lower .*{flags}"):
        async with open_cluster(longer, "test"):
            pass


@pytest.mark.parametrize(
    "field", ["max_deadline_s", "resume_window_s", "response_ttl_s", "files_ttl_s", "dead_ttl_s"]
)
async def test_an_age_that_would_be_none_is_refused(nats_server: NatsServer, field: str) -> None:
    changed: dict[str, Any] = {field: 0.0}
    config = dataclasses.replace(ClusterConfig(nats_url=nats_server.url), **changed)
    with pytest.raises(ConfigError, match=rf"^{field} is 0, must be at least 1$"):
        async with open_cluster(config, "test"):
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


async def test_streams_of_another_version_are_refused_by_name(nats_server: NatsServer) -> None:
    """Also where that version has made them otherwise: what is said first is which it is."""
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        js, meta = cluster.js, cluster.bucket(cluster.subjects.meta_bucket)
        body = msgpack.packb({"v": 1, "protocol_version": 1, "prefix": "jf", "num_partitions": 4})
        await meta.put("incarnation", body)
        await js.api(f"STREAM.DELETE.{cluster.subjects.requests_stream}")
        old = {"name": "jf_REQUESTS", "subjects": ["jf.req.*.*"], "retention": "workqueue"}
        await js.api("STREAM.CREATE.jf_REQUESTS", old)
    with pytest.raises(IncarnationMismatch, match=r"'jf' speak protocol 1, this build 2.*--prefix"):
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
            assert config["filter_subject"] == f"jf.req.pool.{lane.token}.*.*"
            assert config["max_deliver"] == -1
            assert config["ack_wait"] == 9_000_000_000
            assert config["max_ack_pending"] == 100_000
            assert "inactive_threshold" not in config


@pytest.mark.parametrize(
    "field",
    ["resume_window_s", "files_ttl_s", "dead_ttl_s", "max_deadline_s"],
)
async def test_a_short_age_of_what_is_kept_is_taken(nats_server: NatsServer, field: str) -> None:
    """Also one that is shorter than the window in which the server knows message ids."""
    changed: dict[str, Any] = {field: 60}
    config = dataclasses.replace(ClusterConfig(nats_url=nats_server.url), **changed)
    async with open_cluster(config, "test"):
        pass


async def test_a_refusal_gives_no_wrong_hint(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url, replicas=3)
    with pytest.raises(ConfigError, match=r"refused: replicas > 1 not supported.*mode$"):
        async with open_cluster(config, "test"):
            pass
