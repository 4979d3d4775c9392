"""A stolen password of a frontend removes nothing that is stored; that of its eraser does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from deploy.nats.permissions import ADMIN, FRONTEND, SERVICE
from shared.admin.stream_changes import close_rollups
from shared.cluster import Cluster, open_cluster
from shared.config import ERASER, ClusterConfig
from shared.storage.streams import stream_configs
from tests.nats_server import NatsServer
from tests.nats_users import ROLES, NatsUsers

pytestmark = pytest.mark.integration

VERBS = ("PURGE", "MSG.DELETE", "DELETE", "UPDATE")
SEED = "seed"
PASSING = ("KV_jf_workers", "KV_jf_roles", "KV_jf_turns")  # these end by themselves
Seeds = dict[str, int]  # by stream, the sequence of one message


@pytest.fixture
def users(tmp_path: Path) -> NatsUsers:
    return NatsUsers(tmp_path / "nats", ["client"])


@pytest.fixture
def server(users: NatsUsers) -> Iterator[NatsServer]:
    server = users.server()
    server.start()
    yield server
    server.kill()


async def seed(cluster: Cluster) -> Seeds:
    """One message in each stream and bucket."""
    seeds = {}
    for config in stream_configs(cluster.config, cluster.subjects):
        if config["name"] in PASSING:
            continue
        subject = config["subjects"][0].replace("*", SEED).replace(">", SEED)
        seeds[config["name"]] = (await cluster.js.publish(subject, b"kept")).seq
    return seeds


async def removed(cluster: Cluster, seeds: Seeds) -> set[str]:
    return {name for name, seq in seeds.items() if await cluster.js.get_at(name, seq) is None}


async def try_all(users: NatsUsers, url: str, user: str, seeds: Seeds) -> None:
    """Every removal that JetStream has, and each write that the user may with headers that remove
    all else.
    """
    async with await users.connect(url, user, inbox_prefix=f"_INBOX_jf_{user}") as nc:
        for stream, seq in seeds.items():
            for verb in VERBS:
                for body in (b"", b"{}", json.dumps({"seq": seq}).encode()):
                    await nc.publish(f"$JS.API.STREAM.{verb}.{stream}", body)
        for pattern in ROLES[user].publish:
            subject = pattern.replace("*", "x").replace(">", "x")
            for rollup in ("all", "sub"):
                await nc.publish(subject, b"{}", headers={"Nats-Rollup": rollup})
        await refused(nc)


async def refused(nc: Client) -> None:
    """All before it was looked at."""
    heard = asyncio.Event()

    async def on_error(exc: Exception) -> None:
        if "the.last.one" in str(exc):
            heard.set()

    nc._error_cb = on_error
    await nc.publish("the.last.one")
    await asyncio.wait_for(heard.wait(), 30)


async def test_frontends_remove_nothing_by_themselves(users: NatsUsers, server: NatsServer) -> None:
    config = ClusterConfig(nats_url=server.url, **users.options(ADMIN))
    async with open_cluster(config, "test") as cluster:
        seeds = await seed(cluster)
        for user in (FRONTEND, SERVICE):
            await try_all(users, server.url, user, seeds)
            assert await removed(cluster, seeds) == set(), user
        await try_all(users, server.url, ERASER, seeds)
        deadline = time.monotonic() + 10
        while not {"jf_RESPONSES", "jf_TOKENS", "OBJ_jf_files"} <= await removed(cluster, seeds):
            assert time.monotonic() < deadline


async def test_setup_closes_what_an_earlier_version_left_open(nats_server: NatsServer) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        js, bucket = cluster.js, cluster.bucket(cluster.subjects.files_bucket)
        config = (await js.api("STREAM.INFO.KV_jf_files"))["config"]
        await js.api("STREAM.UPDATE.KV_jf_files", config | {"allow_rollup_hdrs": True})
        assert await close_rollups(cluster) == ["KV_jf_files"]
        assert await close_rollups(cluster) == []
        await bucket.put("a", b"1")
        answer = await cluster.nc.request("$KV.jf_files.b", b"2", 5, headers={"Nats-Rollup": "all"})
        assert "rollup not permitted" in answer.data.decode()
        assert [entry.key for entry in await bucket.entries()] == ["a"]
