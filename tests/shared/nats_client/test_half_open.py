"""A connection that nobody closed, and on which nothing arrives any more."""

from __future__ import annotations

import asyncio
import time

import pytest

from bench.chaos.tcp_proxy import TcpProxy
from shared.config import ClusterConfig
from shared.nats_client.connection import Reconnects, connect
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


async def test_a_half_open_connection_is_given_up_within_seconds(nats_server: NatsServer) -> None:
    """Sooner than the server's ack wait: else a frontend tells nobody's text for so long."""
    reconnected = asyncio.Event()

    async def on_reconnect() -> None:
        reconnected.set()

    reconnects = Reconnects()
    reconnects.follow(on_reconnect)
    async with TcpProxy(nats_server.port) as proxy:
        config = ClusterConfig(nats_url=f"nats://127.0.0.1:{proxy.port}")
        nc = await connect(config, "test", reconnects=reconnects)
        proxy.half_open()
        started = time.monotonic()
        async with asyncio.timeout(30):
            await reconnected.wait()
        seconds = time.monotonic() - started
        await nc.close()
    assert seconds < config.ack_wait_s, "4 to 6 s, and what a busy machine adds"
