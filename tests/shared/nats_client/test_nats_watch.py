"""A role tells how its connection to NATS is, also while there is none."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import MalformedMessage, UnknownVersion
from shared.telemetry.malformed_count import MalformedCount
from tests.eventually import eventually
from tests.nats_server import NatsServer


async def until(registry: CollectorRegistry, name: str, value: float) -> None:
    await eventually(lambda: registry.get_sample_value(f"jetflock_nats_{name}") == value)


@pytest.mark.integration
async def test_a_lost_connection_is_seen_and_so_is_its_return(nats_server: NatsServer) -> None:
    registry = CollectorRegistry()
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test", registry=registry):
        await until(registry, "round_trip_seconds_count", 1)
        assert registry.get_sample_value("jetflock_nats_connected") == 1
        assert registry.get_sample_value("jetflock_nats_reconnects_total") == 0
        nats_server.kill()
        await until(registry, "connected", 0)
        nats_server.start()
        await until(registry, "connected", 1)
        assert registry.get_sample_value("jetflock_nats_reconnects_total") == 1


def test_unreadable_messages_are_counted_by_the_kind_of_their_subject() -> None:
    count, registry = MalformedCount(), CollectorRegistry()
    registry.register(count)
    count.note("jf.tok.3.worker-1", MalformedMessage("no"))
    count.note("jf.tok.4.worker-2", MalformedMessage("no"))
    count.note("jf.ctl.pool.notice", UnknownVersion(2, 1))

    def told(subject: str, kind: str) -> float | None:
        labels = {"subject": subject, "kind": kind}
        return registry.get_sample_value("jetflock_malformed_messages_total", labels)

    assert told("tok", "malformed") == 2
    assert told("ctl", "version") == 1
    assert told("ctl", "malformed") is None
    assert count.total == 3
