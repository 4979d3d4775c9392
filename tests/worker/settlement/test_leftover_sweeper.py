"""A broker that forgot to remove what was acknowledged: its store is put back, its consumer not."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError
from shared.protocol.codec import decode, encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.request import GenerateRequest
from shared.storage.streams import ensure_consumers
from shared.subjects import LANES
from tests.eventually import Looks
from tests.nats_server import NatsServer
from tests.worker.io_stage import POOL, make_request
from worker.settlement.leftover_sweeper import LeftoverSweeper

pytestmark = pytest.mark.integration

LANE = LANES[0]


class Queue:
    """Requests that were pulled and acknowledged, and a server that can lose the removal."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.requests = [make_request() for _ in range(3)]
        self._store = server.folder / "jetstream/$G/streams/jf_REQUESTS/msgs"
        self._copy = server.folder / "copy"

    async def fill(self, cluster: Cluster) -> None:
        subjects = cluster.subjects
        await ensure_consumers(cluster.js, subjects, POOL, ack_wait_s=60)
        for request in self.requests:
            subject = subjects.request(POOL, LANE.token, "", request.rid)
            await cluster.js.publish(subject, encode(request))
        self.server.terminate()
        self.server.start()
        await eventually_queued(cluster, len(self.requests))
        shutil.copytree(self._store, self._copy)

    async def acknowledge_all(self, cluster: Cluster) -> None:
        subjects = cluster.subjects
        pull = await cluster.nc.jetstream().pull_subscribe_bind(
            subjects.consumer(POOL, LANE.token), subjects.requests_stream
        )
        for message in await pull.fetch(len(self.requests), timeout=10):
            await message.ack_sync()
        assert await num_queued(cluster) == 0

    def lose_removals(self) -> None:
        self.server.terminate()  # the acknowledgements are on its disk
        shutil.rmtree(self._store)
        shutil.move(self._copy, self._store)
        self.server.start()


async def test_what_was_acknowledged_and_is_over_leaves_the_queue_again(
    nats_server: NatsServer,
) -> None:
    queue = Queue(nats_server)
    ended, finished, unknown = queue.requests
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        await queue.fill(cluster)
        await queue.acknowledge_all(cluster)
        queue.lose_removals()
        await eventually_queued(cluster, 3)
        await cluster.ownership.end(ended.rid, End(0, FinishReason.CANCEL, by="test"))
        await cluster.js.publish(cluster.subjects.done(finished.rid), b"result")
        waiting = make_request()
        subject = cluster.subjects.request(POOL, LANE.token, "", waiting.rid)
        await cluster.js.publish(subject, encode(waiting))

        assert await LeftoverSweeper(cluster, POOL, retention_s=600).sweep() == 2
        assert await queued_rids(cluster) == [unknown.rid, waiting.rid]
        # Its deadline has passed long ago, and its log is gone.
        assert await LeftoverSweeper(cluster, POOL, retention_s=0).sweep() == 1
        assert await queued_rids(cluster) == [waiting.rid]


async def num_queued(cluster: Cluster) -> int:
    info = await cluster.js.api(f"STREAM.INFO.{cluster.subjects.requests_stream}")
    return int(info["state"]["messages"])


async def eventually_queued(cluster: Cluster, count: int) -> None:
    """The connection comes back by itself."""
    async for _ in Looks():
        with contextlib.suppress(BrokerError):
            if await num_queued(cluster) == count:
                return


async def queued_rids(cluster: Cluster) -> list[str]:
    subjects = cluster.subjects
    queue = cluster.js.proven_scan(subjects.requests_stream, subjects.requests(POOL, LANE.token))
    return [decode(GenerateRequest, message.data).rid async for message in queue]
