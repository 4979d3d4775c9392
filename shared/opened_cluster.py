"""Opens a cluster however often it takes: for who serves on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.telemetry.log import get_logger

_RETRY_S = 1.0

log = get_logger(__name__)


@asynccontextmanager
async def opened_cluster(config: ClusterConfig, name: str) -> AsyncIterator[Cluster]:
    """As `open_cluster`; what it raises is logged, and tried again."""
    while True:
        opening = open_cluster(config, name)
        try:
            cluster = await opening.__aenter__()
        except (BrokerError, ConfigError) as exc:
            log.error("newer_streams_not_opened", error=str(exc))
            await asyncio.sleep(_RETRY_S)
            continue
        break
    try:
        yield cluster
    finally:
        await opening.__aexit__(None, None, None)
