"""A log that went back is noticed; a server that tells of the past alone is not believed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.broker.stream_info import has_quorum
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable, LogWentBack
from shared.liveness.log_watch import LogMark, LogWatch
from tests.nats_cluster import ClusteredServer
from tests.nats_server import NatsServer
from tests.parted_cluster import PartedCluster

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
integration = pytest.mark.integration


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[PartedCluster]:
    async with PartedCluster(tmp_path / "nats") as cluster:
        yield cluster


def config_of(server: ClusteredServer) -> ClusterConfig:
    return ClusterConfig(nats_url=server.url, replicas=3, nats_connect_timeout_s=60)


async def log_leader(cluster: Cluster, nats: PartedCluster) -> ClusteredServer:
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.tokens_stream}")
    return nats.named(info["cluster"]["leader"])


async def append(cluster: Cluster) -> int:
    return (await cluster.js.publish(cluster.subjects.tokens(0, "worker-x"), b"frame")).seq


@integration
@pytest.mark.parametrize("who", ["a follower", "the leader"])
@pytest.mark.nightly
async def test_a_server_that_is_cut_off_is_not_believed(nats: PartedCluster, who: str) -> None:
    async with open_cluster(config_of(nats.servers[0]), "first") as first:
        await append(first)
        leader = await log_leader(first, nats)
    others = [server for server in nats.servers if server is not leader]
    cut, free = (others[0], others[1]) if who == "a follower" else (leader, others[0])
    async with (
        open_cluster(config_of(cut), "cut") as there,
        open_cluster(config_of(free), "free") as here,
    ):
        seen = await append(here)
        nats.isolate(cut)
        watching = asyncio.create_task(LogWatch(there, lambda: LogMark(seen)).run())
        deadline = time.monotonic() + 30
        for _ in range(3):
            while True:
                assert time.monotonic() < deadline
                try:
                    seen = await append(here)
                except Exception:
                    continue
                break
        done, _ = await asyncio.wait([watching], timeout=12)
        assert not done, watching.exception()
        nats.heal()
        done, _ = await asyncio.wait([watching], timeout=8)
        assert not done, watching.exception()
        watching.cancel()


@integration
@pytest.mark.parametrize("is_made_again", [True, False])
async def test_a_store_that_was_emptied_is_noticed(
    nats: PartedCluster, tmp_path: Path, is_made_again: bool
) -> None:
    config = config_of(nats.servers[0])
    async with open_cluster(config, "test") as cluster:
        seen = await append(cluster)
        watching = asyncio.create_task(LogWatch(cluster, lambda: LogMark(seen)).run())
        nats.kill()
        for server in nats.servers:
            shutil.rmtree(tmp_path / "nats" / server.name / "store")
        await asyncio.to_thread(nats.start)
        if is_made_again:
            async with open_cluster(config, "other"):
                pass
        words = "ends at 0" if is_made_again else "is gone"
        with pytest.raises(LogWentBack, match=words):
            await asyncio.wait_for(watching, 40)


@integration
async def test_one_server_is_asked_more_seldom_than_three(
    nats: PartedCluster, nats_server: NatsServer
) -> None:
    intervals = []
    for config in (ClusterConfig(nats_url=nats_server.url), config_of(nats.servers[0])):
        async with open_cluster(config, "test") as cluster:
            watch = LogWatch(cluster, lambda: LogMark(0))
            assert await watch._loss([]) is None
            intervals.append(watch._interval_s)
    assert intervals == [10.0, 2.0]


@integration
async def test_a_log_that_has_grown_beyond_what_was_lost_is_noticed(tmp_path: Path) -> None:
    """By then it is as long as before: only its records tell."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    store, earlier = server.folder / "jetstream", tmp_path / "earlier"
    try:
        async with open_cluster(ClusterConfig(nats_url=server.url), "test") as cluster:
            subject = cluster.subjects.tokens(0, "worker-x")
            await cluster.js.publish(subject, b"kept")
            server.terminate()
            shutil.copytree(store, earlier)
            server.start()
            mark = LogMark(1, b"kept")
            watching = asyncio.create_task(LogWatch(cluster, lambda: mark).run())
            mark = LogMark(await append_when_back(cluster, subject, b"lost"), b"lost")
            server.kill()
            shutil.rmtree(store)
            shutil.copytree(earlier, store)
            other = NatsServer(server.folder)  # where the watch does not look meanwhile
            other.start()
            async with open_cluster(ClusterConfig(nats_url=other.url), "other") as there:
                seq = 0
                while seq <= mark.seq:
                    seq = await append_when_back(there, subject, b"of another history")
            other.terminate()
            mark = LogMark(seq, b"of another history")  # what is read now is in order
            server.start()
            with pytest.raises(LogWentBack, match="another record at 2"):
                await asyncio.wait_for(watching, 30)
    finally:
        server.kill()


async def append_when_back(cluster: Cluster, subject: str, payload: bytes) -> int:
    deadline = time.monotonic() + 20
    while True:
        try:
            return (await cluster.js.publish(subject, payload)).seq
        except BrokerUnavailable:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("group", "is_believed"),
    [
        (None, True),
        ({"leader": "n1"}, True),
        ({"leader": "", "replicas": [{"name": "n2", "active": 1}]}, False),
        ({"replicas": [{"name": "n2", "active": 1}]}, False),
        ({"leader": "n1", "replicas": [{"active": 10**9}, {"active": 10**11}]}, True),
        ({"leader": "n1", "replicas": [{"active": 10**11}, {"active": 10**11}]}, False),
        ({"leader": "n1", "replicas": [{"offline": True, "active": 1}] * 2}, False),
    ],
)
def test_a_quorum_stands_behind_what_counts(group: Any, is_believed: bool) -> None:
    assert has_quorum({"cluster": group}) is is_believed
