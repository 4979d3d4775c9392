"""Three servers, and what tests of CPU time need."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.cli.garbage import settle_garbage
from tests.nats_cluster import NatsCluster


@pytest.fixture(scope="module")
def collected_as_in_a_role() -> Iterator[None]:
    """What all the other tests have left is looked at once, and not while CPU time is measured."""
    thresholds = gc.get_threshold()
    settle_garbage()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    """A cluster of three servers that runs."""
    cluster = NatsCluster(tmp_path / "nats")
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster
    finally:
        cluster.kill()
