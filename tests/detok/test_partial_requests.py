"""A request that a detokenizer meets in the middle of its log: its state is that of that place."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from detok.partial_requests import SeenEntry, SeenRecord, UnknownRequest
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.log_records import Release, TokenEntry
from tests.nats_server import NatsServer
from tests.shared.simulated_log import RID, make_claim

pytestmark = pytest.mark.integration


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        yield cluster


async def test_its_past_is_what_stood_before_the_place(cluster: Cluster) -> None:
    log = cluster.ownership
    first = await log.append(RID, make_claim(0, "w1"))
    released = await log.append(RID, Release(first, "w1"))
    claim = make_claim(released, "w2")
    second = await log.append(RID, claim)
    await log.append(RID, Release(second, "w2"))
    unknown = UnknownRequest(RID, second, [SeenRecord(second, claim, 0.0)])
    status = await unknown.resolve(cluster)
    assert status is not None
    assert (status.fold.last_record_seq, status.fold.writer) == (released, "")
    assert status.is_partial
    assert status.rebuild_point.seq == second

    in_its_middle = UnknownRequest(RID, second + 1, [])
    in_its_middle.seen.append(SeenEntry(second + 1, "w2", TokenEntry(RID, second, 0, [7]), 0.0))
    status = await in_its_middle.resolve(cluster)
    assert status is not None
    assert (status.fold.epoch, status.fold.writer) == (second, "w2")


async def test_a_record_whose_past_is_gone_is_of_a_request_all_the_same(cluster: Cluster) -> None:
    claim = make_claim(5, "w2")
    status = await UnknownRequest(RID, 9, [SeenRecord(9, claim, 0.0)]).resolve(cluster)
    assert status is not None
    assert status.is_partial


async def test_frames_without_a_claim_are_nobodys(cluster: Cluster) -> None:
    seen = SeenEntry(9, "w", TokenEntry(RID, 5, 0, [7]), 0.0)
    assert await UnknownRequest(RID, 9, [seen]).resolve(cluster) is None
