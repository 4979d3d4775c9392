"""Which frontends read a request, as KV tells it."""

from __future__ import annotations

import pytest

from frontend.attachments import Attachments
from shared.cluster import open_cluster
from shared.codec import encode
from shared.config import ClusterConfig
from shared.protocol.request import Readers
from shared.subjects import new_rid
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


async def test_garbage_among_the_readers_concerns_no_request(nats_server: NatsServer) -> None:
    """Whoever sweeps a dead frontend's requests reads them all."""
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        bucket = cluster.bucket(cluster.subjects.attached_bucket)
        rid = new_rid()
        await bucket.put(rid, encode(Readers(("frontend-1",))))
        await bucket.put(new_rid(), b"\xc1garbage")
        assert await Attachments(bucket, "frontend-2").all() == {rid: Readers(("frontend-1",))}
