"""One broker with one model's queue a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from shared.nats_client.connection import round_trip
from tests.nats_server import NatsServer
from tests.worker.io_stage import Stage, open_stage


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        yield stage


@pytest.fixture
async def older_stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    """One whose level leaves it to workers to acknowledge what they have finished."""
    async with open_stage(nats_server.url, first_level=3) as stage:
        yield stage


@pytest.fixture
async def acks(stage: Stage) -> AsyncIterator[list[bytes]]:
    """What is told to the server of deliveries, by anybody."""
    payloads: list[bytes] = []

    async def on_ack(message: Msg) -> None:
        payloads.append(message.data)

    subject = f"$JS.ACK.{stage.cluster.subjects.requests_stream}.>"
    subscription = await stage.cluster.nc.subscribe(subject, cb=on_ack)
    await round_trip(stage.cluster.nc)
    yield payloads
    await subscription.unsubscribe()
