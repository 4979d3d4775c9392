"""What every role holds: one connection, JetStream on it, and the names to use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.errors import NoRespondersError
from prometheus_client import CollectorRegistry

from shared.config import ClusterConfig
from shared.connection import ReconnectCallback, connect
from shared.errors import BrokerError, BrokerUnavailable, ConfigError
from shared.jetstream import JetStream
from shared.kv_bucket import KvBucket
from shared.log import get_logger
from shared.malformed_count import MalformedCount
from shared.nats_watch import NatsWatch
from shared.ownership import OwnershipLog
from shared.streams import DEFAULT_PARTITIONS, ensure_streams
from shared.subjects import Subjects

_RETRY_S = 0.3

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connected, checked set of streams."""

    config: ClusterConfig
    nc: Client
    js: JetStream
    subjects: Subjects
    ownership: OwnershipLog
    malformed: MalformedCount = field(default_factory=MalformedCount)

    def bucket(self, name: str) -> KvBucket:
        return KvBucket(self.js, name)


@asynccontextmanager
async def open_cluster(
    config: ClusterConfig,
    name: str,
    on_reconnect: ReconnectCallback | None = None,
    default_partitions: int = DEFAULT_PARTITIONS,
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[Cluster]:
    """Connect as `name`, make or check the streams; closes the connection at the end.

    The registry is given what is to be known of the connection and of what comes over it.
    Raises ConfigError when NATS cannot be reached or its streams do not fit.
    """
    nc = await connect(config, name, on_reconnect=on_reconnect)
    try:
        js = JetStream(nc)
        try:
            subjects = await _streams_in_time(js, config, default_partitions)
        except BrokerError as exc:
            raise ConfigError(
                f"JetStream at {config.nats_url} refused: {exc}; is it enabled (nats-server -js)?"
            ) from exc
        cluster = Cluster(config, nc, js, subjects, OwnershipLog(js, subjects))
        if registry is None:
            yield cluster
        else:
            async with _watched(cluster, registry):
                yield cluster
    finally:
        # The server may be gone already; uvloop says that of a closed connection in its own words.
        with contextlib.suppress(OSError, RuntimeError):
            await nc.close()


@asynccontextmanager
async def _watched(cluster: Cluster, registry: CollectorRegistry) -> AsyncIterator[None]:
    registry.register(cluster.malformed)
    watching = asyncio.create_task(NatsWatch(cluster.nc, registry).run())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _streams_in_time(
    js: JetStream, config: ClusterConfig, default_partitions: int
) -> Subjects:
    """Again while servers choose a leader. Raises BrokerError."""
    deadline = time.monotonic() + config.nats_connect_timeout_s
    while True:
        try:
            return await ensure_streams(js, config, default_partitions)
        except BrokerUnavailable as exc:
            # Each server with JetStream hears its API: without a listener nobody will ever answer.
            if isinstance(exc.__cause__, NoRespondersError) or time.monotonic() > deadline:
                raise
            log.info("streams_wait_for_a_leader", error=str(exc))
            await asyncio.sleep(_RETRY_S)
