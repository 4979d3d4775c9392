"""All servers of a role die in the moment in which it sends something."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from nats.aio.client import Client
from nats.errors import Error as NatsError

from shared.config import ClusterConfig
from shared.errors import BrokerUnavailable
from shared.nats_client.connection import connect, round_trip
from shared.subjects import LANES
from tests.nats_server import NatsServer
from worker.held.delivery import Acknowledger, Delivery

pytestmark = pytest.mark.integration

QUEUED_AT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
UNHEARD = Delivery(b"", "nobody.hears.it", 1, 1, QUEUED_AT, "", LANES[0], 0)


async def break_unnoticed(nc: Client) -> None:
    """The transport is closed and nobody flushes; that the connection is gone is not yet known."""
    assert nc._flusher_task is not None
    assert nc._transport is not None
    nc._flusher_task.cancel()
    await asyncio.sleep(0)
    nc._transport.close()
    assert nc.is_connected


async def ack(nc: Client) -> None:
    with pytest.raises(BrokerUnavailable):
        await Acknowledger(nc, timeout_s=0.1).ack(UNHEARD)


async def in_progress(nc: Client) -> None:
    await Acknowledger(nc).in_progress(UNHEARD)


async def publish(nc: Client) -> None:
    await nc.publish("nobody.hears.it")


async def subscribe(nc: Client) -> None:
    await nc.subscribe("something")


async def request(nc: Client) -> None:
    with pytest.raises(NatsError):
        await nc.request("nobody.hears.it", timeout=0.1)


@pytest.mark.parametrize("send", [ack, in_progress, publish, subscribe, request])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_sending_on_a_connection_that_has_just_broken(
    nats_server: NatsServer,
    send: Callable[[Client], Awaitable[None]],
    run: Callable[[Awaitable[None]], None],
) -> None:
    async def main() -> None:
        nc = await connect(ClusterConfig(nats_url=nats_server.url), "test")
        try:
            await break_unnoticed(nc)
            await send(nc)
            assert await round_trip(nc, timeout_s=20), "what was sent afterwards is lost"
        finally:
            await nc.close()

    run(main())
