"""A connection that is given up ends soon, whoever does not read its other end."""

from __future__ import annotations

import time

import pytest

from shared.config import ClusterConfig
from shared.nats_client.connection import connect
from shared.nats_client.connection_end import end_connection
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


async def test_what_a_stopped_server_does_not_read_holds_nobody(nats_server: NatsServer) -> None:
    nc = await connect(ClusterConfig(nats_url=nats_server.url), "test")
    nats_server.pause()
    try:
        for _ in range(20):  # more than the system keeps for a connection
            await nc.publish("somewhere", bytes(1_000_000))
        started = time.monotonic()
        await end_connection(nc)
        assert time.monotonic() - started < 3
        assert nc.is_closed
    finally:
        nats_server.resume()


async def test_what_waits_is_sent(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    listener = await connect(config, "listener")
    subscription = await listener.subscribe("somewhere")
    await listener.flush()
    nc = await connect(config, "test")
    await nc.publish("somewhere", b"last words")
    await end_connection(nc)
    assert (await subscription.next_msg(5)).data == b"last words"
    await end_connection(listener)
