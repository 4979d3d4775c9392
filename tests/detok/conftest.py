"""One broker, one tokenizer, one listener a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.detok.scripted import Stage, open_stage
from tests.nats_server import NatsServer


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        yield stage
