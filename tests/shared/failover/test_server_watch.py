"""Three servers, one of them cut off: its clients go elsewhere, and stay where nobody is better."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from shared.broker.stream_info import has_quorum
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.failover.server_watch import OwnPace
from shared.nats_client.prompt_client import prompt
from tests.eventually import Looks, eventually
from tests.nats_cluster import ClusteredServer
from tests.nats_server import NatsServer
from tests.parted_cluster import PartedCluster
from tests.time_to_err import time_to_err

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ELECTION_S = 9.0  # at most, as NATS does it
SILENCE_S = 8.0  # beyond what those are silent whose server is not cut off


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[PartedCluster]:
    async with PartedCluster(tmp_path / "nats") as cluster:
        yield cluster


class Writer:
    """A role that writes a heartbeat now and then, connected to one server at first."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.written_at = [time.monotonic()]

    async def run(self) -> None:
        roles = self.cluster.bucket(self.cluster.subjects.roles_bucket)
        while True:
            try:
                await roles.put("writer", b"here")
            except BrokerError:
                continue
            self.written_at.append(time.monotonic())
            await asyncio.sleep(0.1)

    @property
    def port(self) -> int | None:
        url = self.cluster.nc.connected_url
        return None if url is None else url.port

    @property
    def num_moves(self) -> int:
        return int(self.cluster.nc.stats["reconnects"])

    def silence_s(self, since: float) -> float:
        """The longest pause between writes, now included."""
        times = [at for at in self.written_at if at >= since]
        return max(b - a for a, b in zip([since, *times], [*times, time.monotonic()], strict=True))


@asynccontextmanager
async def writing(nats: PartedCluster, server: ClusteredServer) -> AsyncIterator[Writer]:
    """By way of `server`, and knowing the others."""
    others = [other.url for other in nats.servers if other is not server]
    urls = ",".join([server.url, *others])
    config = ClusterConfig(nats_url=urls, replicas=3, nats_connect_timeout_s=60)
    async with open_cluster(config, "writer") as cluster:
        async for _ in Looks(60, longest_pause_s=0.2):
            if (url := cluster.nc.connected_url) is not None and url.port == server.port:
                break
            await cluster.nc.force_reconnect()
        cluster.nc.stats["reconnects"] = 0
        writer = Writer(cluster)
        task = asyncio.create_task(writer.run())
        try:
            await eventually(lambda: len(writer.written_at) > 15)
            yield writer
        finally:
            task.cancel()
            await asyncio.wait([task])


async def leader(writer: Writer, nats: PartedCluster, bucket: str) -> ClusteredServer:
    info = await writer.cluster.js.api(f"STREAM.INFO.KV_{bucket}")
    return nats.named(info["cluster"]["leader"])


@pytest.mark.parametrize(
    "cut",
    [
        "both ways",
        *(pytest.param(cut, marks=pytest.mark.nightly) for cut in ("one way", "the other way")),
    ],
)
async def test_a_server_cut_off_from_its_peers_is_left(nats: PartedCluster, cut: str) -> None:
    server = nats.servers[0]
    async with writing(nats, server) as writer, writing(nats, nats.servers[1]) as other_writer:
        cut_at = time.monotonic()
        for other in nats.servers[1:]:
            if cut != "the other way":
                nats.cut(server, other)
            if cut != "one way":
                nats.cut(other, server)
        # "The other way" it makes the others vote again and again, until it gives up.
        await eventually(lambda: writer.num_moves == 1, 45)
        await time_to_err(6)  # and stays there
        silence_s, others_s = writer.silence_s(cut_at), other_writer.silence_s(cut_at)
        moves = writer.num_moves
        print(f"{cut}: silent for {silence_s:.1f} s, the others {others_s:.1f}, {moves} moves")
        assert silence_s < others_s + SILENCE_S
        assert moves == 1
        assert writer.port != server.port
        nats.heal()
        await time_to_err(3)
        assert writer.num_moves == 1
        assert other_writer.num_moves == 0


@pytest.mark.nightly
async def test_a_single_link_is_cut(nats: PartedCluster) -> None:
    """A server that leads what we write, and ours, do not hear each other: the third hears both."""
    async with writing(nats, nats.servers[0]) as writer:
        far = await leader(writer, nats, writer.cluster.subjects.roles_bucket)
    near = next(server for server in nats.servers if server is not far)
    async with writing(nats, near) as writer:
        cut_at = time.monotonic()
        nats.cut_link(near, far)
        await eventually(lambda: writer.num_moves == 1, 30)
        await time_to_err(2.0)
        silence_s = writer.silence_s(cut_at)
        print(f"one link: silent for {silence_s:.1f} s, {writer.num_moves} moves")
        assert silence_s < SILENCE_S + 1
        assert writer.port != near.port
        nats.heal()


@pytest.mark.slow
@pytest.mark.nightly
async def test_without_a_quorum_nobody_moves(nats: PartedCluster) -> None:
    async with writing(nats, nats.servers[0]) as writer:
        for server in nats.servers:
            nats.isolate(server)
        await time_to_err(60)
        assert writer.cluster.server.is_cut_off
        assert writer.num_moves == 0
        nats.heal()
        healed_at = time.monotonic()
        await eventually(lambda: writer.written_at[-1] > healed_at, ELECTION_S + SILENCE_S)
        first = next(at for at in writer.written_at if at > healed_at)
        print(f"writes again {first - healed_at:.1f} s after the healing")
        # Each stream chooses a leader of its own: what we wrote may have one before another that we
        # asked for.
        await eventually(lambda: not writer.cluster.server.is_cut_off, ELECTION_S + SILENCE_S)
        await time_to_err(3)
        assert not writer.cluster.server.is_cut_off, "and stays so"
        assert writer.num_moves <= 1, "ours may be the last that is back"


GROUP = {"raft_group": "g", "leader": "a"}
HEARD, SILENT = {"current": True, "active": 400_000_000}, {"current": False, "active": 5 * 10**9}
NEVER_HEARD = {"current": False, "active": 0}


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({}, True),
        ({"name": "c", "leader": "a"}, True),
        ({**GROUP, "replicas": [HEARD, HEARD]}, True),
        ({**GROUP, "replicas": [SILENT, HEARD]}, True),
        ({**GROUP, "replicas": [NEVER_HEARD, HEARD]}, True),
        ({**GROUP, "replicas": [NEVER_HEARD, SILENT]}, False),
        ({**GROUP, "replicas": [HEARD, SILENT, SILENT, NEVER_HEARD]}, False),
        ({**GROUP, "replicas": [HEARD, SILENT, SILENT, HEARD]}, True),
        ({"raft_group": "g", "replicas": [HEARD, HEARD]}, False),
    ],
)
def test_a_leader_that_hears_a_majority(cluster: dict[str, object], expected: bool) -> None:
    assert has_quorum({"cluster": cluster}, within_s=1.0) is expected


async def test_a_dead_link_full_of_unsent_bytes_is_left(tmp_path: Path) -> None:
    """nats-py waits until all is written before it connects anew."""
    first, second = NatsServer(tmp_path / "1"), NatsServer(tmp_path / "2")
    first.start()
    try:
        config = ClusterConfig(nats_url=f"{first.url},nats://127.0.0.1:{second.port}")
        async with open_cluster(config, "writer") as cluster:
            first.pause()
            second.start()
            for _ in range(20):  # more than the system keeps for a connection
                await cluster.nc.publish("somewhere", bytes(1_000_000))
            await eventually(lambda: cluster.nc.stats["reconnects"] == 1, 20)
            url = cluster.nc.connected_url
            assert url is not None
            assert url.port == second.port
    finally:
        first.kill()
        second.kill()


@pytest.mark.parametrize("what", ["quiet", "late loop", "backlog", "stopped server"])
async def test_who_is_slow_does_not_blame_the_server(nats_server: NatsServer, what: str) -> None:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "asker") as cluster:
        nc, pace = cluster.nc, OwnPace(cluster.nc)
        if what == "stopped server":
            nats_server.pause()
        async with pace.measured():
            if what == "backlog":
                await nc.subscribe("backlog", cb=_slow_reader)
                for _ in range(20):
                    await nc.publish("backlog", b"x")
            await asyncio.sleep(0.1)
            if what == "late loop":
                time.sleep(0.5)  # noqa: ASYNC251 - as with thousands of requests in one turn
            await asyncio.sleep(0.5)
        nats_server.resume()
        assert pace.is_slow == (what in ("late loop", "backlog"))


@prompt
async def _slow_reader(_: Msg) -> None:
    await asyncio.sleep(0.05)
