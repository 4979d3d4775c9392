"""One broker with one model's queue a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.nats_server import NatsServer
from tests.worker.io_stage import Stage, open_stage


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        yield stage
