"""A service that moves takes the settings of its streams along, unless others are given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jetflock.commands.migrate import new_streams_config
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.storage.streams import stream_configs
from shared.subjects import Subjects
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

DAY_S = 86_400.0
# Each differs from its default: all that `stream_configs` reads but the copies, which need servers.
SETTINGS: dict[str, Any] = {
    "queue_max_msgs": 77,
    "queue_max_bytes": 3 << 20,
    "log_max_bytes": 5 << 20,
    "results_max_bytes": 6 << 20,
    "files_max_bytes": 7 << 20,
    "files_ttl_s": 2 * DAY_S,
    "objects_max_bytes": 8 << 20,
    "keys_max_bytes": 9 << 20,
    "max_deadline_s": 1800.0,
    "resume_window_s": 120.0,
    "response_ttl_s": 3 * DAY_S,
    "response_store_bytes": 10 << 20,
    "dead_max_bytes": 11 << 20,
    "dead_ttl_s": 5 * DAY_S,
    "bills_ttl_s": 9 * DAY_S,
    "bills_max_bytes": 12 << 20,
}


@pytest.mark.parametrize("given", [{}, {"bills_ttl_s": 4 * DAY_S, "num_partitions": 2}])
async def test_all_settings_go_along(nats_server: NatsServer, given: dict[str, Any]) -> None:
    old = ClusterConfig(nats_url=nats_server.url, num_partitions=3, **SETTINGS)
    command = ClusterConfig(nats_url=nats_server.url, **given)
    async with open_cluster(old, "test") as cluster:
        found = await new_streams_config(cluster.js, cluster.subjects, command, "blue")
    assert found == dataclasses.replace(old, prefix="blue", **given)
    blue = Subjects("blue")
    expected = dataclasses.replace(old, **given)
    assert stream_configs(found, blue) == stream_configs(expected, blue)


async def test_where_no_bills_are_kept_there_are_none_behind_a_move(
    nats_server: NatsServer,
) -> None:
    old = ClusterConfig(nats_url=nats_server.url, num_partitions=1)
    async with open_cluster(old, "test") as cluster:
        found = await new_streams_config(cluster.js, cluster.subjects, old, "blue")
    assert found.bills_ttl_s == 0


def test_no_setting_of_streams_is_forgotten_here() -> None:
    """One that `stream_configs` reads, and that is not above, would be lost unseen."""
    read: set[str] = set()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(ClusterConfig(**SETTINGS), name)

    stream_configs(Watched(), Subjects())  # type: ignore[arg-type]
    derived = {"token_retention_s": "max_deadline_s"}
    assert {derived.get(name, name) for name in read} - {"replicas"} <= SETTINGS.keys()
