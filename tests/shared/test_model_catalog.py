"""Model cards in KV."""

from __future__ import annotations

import pytest

from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.model_catalog import ModelCatalog
from shared.model_files import ModelFiles
from tests.e2e.role_stack import DEMO_MODEL
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration


async def test_garbage_among_the_cards_concerns_no_model(nats_server: NatsServer) -> None:
    """A frontend reads them all, every second: one bad card must not end it."""
    async with open_cluster(ClusterConfig(nats_url=nats_server.url), "test") as cluster:
        catalog = ModelCatalog(cluster)
        card = await catalog.register(ModelFiles.read(DEMO_MODEL), "demo")
        cards = cluster.bucket(cluster.subjects.models_bucket)
        for number, garbage in enumerate((b"", b"\xc1", b"\x81", b"\x81\xa1v\x63")):
            await cards.put(f"garbage-{number}", garbage)
        assert await catalog.cards() == [card]
