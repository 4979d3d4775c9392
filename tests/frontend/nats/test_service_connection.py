"""The connections beside the main one are where that is, also when it moves."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from nats.aio.client import Client

from frontend.config import FrontendConfig
from frontend.frontend import service_connection
from shared.cluster import Cluster, open_cluster
from shared.errors import BrokerError
from tests.eventually import eventually
from tests.nats_cluster import ClusteredServer
from tests.parted_cluster import PartedCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MOVED_S = 25.0  # servers choose a leader for up to 9 s before anybody moves


def is_at(nc: Client, server: ClusteredServer) -> bool:
    url = nc.connected_url
    return url is not None and url.port == server.port


async def write(cluster: Cluster) -> None:
    """As any role does: from what is not stored it learns that its server is cut off."""
    roles = cluster.bucket(cluster.subjects.roles_bucket)
    while True:
        with contextlib.suppress(BrokerError):
            await roles.put("writer", b"here")
        await asyncio.sleep(0.1)


async def test_it_leaves_a_server_that_is_cut_off_with_the_main_one(tmp_path: Path) -> None:
    async with PartedCluster(tmp_path / "nats") as nats:
        urls = ",".join(server.url for server in nats.servers)
        config = FrontendConfig(
            nats_url=urls, replicas=3, nats_connect_timeout_s=60, nats_eraser_user="eraser"
        )
        async with (
            open_cluster(config, "frontend") as cluster,
            service_connection(config, "frontend", cluster.nc) as service_nc,
        ):
            assert service_nc is not None
            erasing_nc = cluster.js.erasing_nc
            assert erasing_nc is not cluster.nc
            cut = next(server for server in nats.servers if is_at(cluster.nc, server))
            await eventually(lambda: is_at(service_nc, cut) and is_at(erasing_nc, cut))
            heard: list[bytes] = []

            async def hear(message: object) -> None:
                heard.append(b"heard")

            await service_nc.subscribe("question", cb=hear)
            writing = asyncio.create_task(write(cluster))
            try:
                nats.isolate(cut)
                await eventually(lambda: not is_at(cluster.nc, cut), MOVED_S)
                await eventually(lambda: cluster.nc.is_connected)
                await eventually(
                    lambda: (
                        service_nc.connected_url
                        == erasing_nc.connected_url
                        == cluster.nc.connected_url
                    ),
                    timeout_s=3.0,
                )
                await cluster.nc.publish("question", b"")
                await eventually(lambda: bool(heard))
                await cluster.bucket(cluster.subjects.roles_bucket).delete("writer")
            finally:
                writing.cancel()
                await asyncio.wait([writing])
                nats.heal()
