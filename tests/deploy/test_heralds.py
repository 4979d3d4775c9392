"""A detokenizer that died: what it held is free before it expires."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deploy.local.heralds import DetokHerald
from deploy.processes.kept_process import Launch
from deploy.scaling.service_sides import ServiceSides
from detok.detokenizer import ROLE
from detok.owner_table import OwnerTable
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.codec import encode
from shared.protocol.leases import LeaseRecord, PartitionOwner
from shared.protocol.role_cards import RoleCard
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

DEAD, LIVING = "detok-1", "detok-12"


@pytest.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=3)
    async with open_cluster(config, "test") as cluster:
        table = OwnerTable(cluster.js, cluster.subjects)
        for name in (DEAD, LIVING):
            await table.write_lease(LeaseRecord(name, f"n-{name}", 1000), 0)
        for idx, name in enumerate((DEAD, LIVING, DEAD)):
            await table.write_owner(idx, PartitionOwner(name, f"n-{name}"), 0)
        for name in (DEAD, LIVING):
            roles = cluster.bucket(cluster.subjects.roles_bucket)
            await roles.put(name, encode(RoleCard(name, ROLE)))
        yield cluster


async def test_a_death_frees_leases_and_ends_the_heartbeat(cluster: Cluster) -> None:
    await DetokHerald(ServiceSides(cluster)).announce_death(Launch([], {}, DEAD), -9)
    assert await held(cluster) == {1: LIVING}
    assert await alive(cluster) == [LIVING]


async def test_who_ended_by_itself_is_left_to_it(cluster: Cluster) -> None:
    await DetokHerald(ServiceSides(cluster)).announce_death(Launch([], {}, DEAD), 0)
    assert await held(cluster) == {0: DEAD, 1: LIVING, 2: DEAD}
    assert await alive(cluster) == [DEAD, LIVING]


async def held(cluster: Cluster) -> dict[int, str]:
    return await OwnerTable(cluster.js, cluster.subjects).holders()


async def alive(cluster: Cluster) -> list[str]:
    bucket = cluster.bucket(cluster.subjects.roles_bucket)
    return sorted(entry.key for entry in await bucket.entries())
