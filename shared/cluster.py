"""What every role holds: its connection, JetStream on it, and the names to use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.broker.objects import Objects
from shared.broker.settling import once_settled
from shared.config import ERASER, ClusterConfig
from shared.errors import BrokerError, ConfigError, JetStreamAbsent
from shared.failover.companion_connection import companion_connection
from shared.failover.server_watch import ServerVerdict, ServerWatch
from shared.nats_client.connection import NatsWatch, Reconnects, open_connection
from shared.protocol.request import FEATURE_LEVEL
from shared.service.feature_level import FeatureLevel
from shared.service.move import MoveRecords
from shared.storage.streams import DEFAULT_PARTITIONS, ensure_streams
from shared.subjects import Subjects
from shared.telemetry.malformed_count import MalformedCount
from shared.token_log.ownership import OwnershipLog
from shared.token_log.request_queue import RequestQueue

ChoosePrefix = Callable[[JetStream, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connected, checked set of streams."""

    config: ClusterConfig
    nc: Client
    js: JetStream
    subjects: Subjects
    ownership: OwnershipLog
    malformed: MalformedCount = field(default_factory=MalformedCount)
    server: ServerVerdict = field(default_factory=ServerVerdict)
    reconnects: Reconnects = field(default_factory=Reconnects)

    @property
    def level(self) -> FeatureLevel:
        return self.ownership.level

    @property
    def queue(self) -> RequestQueue:
        return RequestQueue(self.js, self.subjects, self.ownership)

    def bucket(self, name: str) -> KvBucket:
        return KvBucket(self.js, name)

    def objects(self, bucket: str) -> Objects:
        return Objects(self.js, bucket)


@asynccontextmanager
async def open_cluster(
    config: ClusterConfig,
    name: str,
    default_partitions: int = DEFAULT_PARTITIONS,
    registry: CollectorRegistry | None = None,
    choose: ChoosePrefix | None = None,
    first_level: int = FEATURE_LEVEL,
) -> AsyncIterator[Cluster]:
    """Connect as `name`, make or check the streams; closes the connection at the end.

    The registry is given what is to be known of the connection and of what comes over it.
    `choose` is told the configured prefix, and gives the one to use: where a service moves, the
    role may belong on its other side. `first_level` is in force in streams that are made here.
    Raises ConfigError when NATS cannot be reached or its streams do not fit; OutdatedBuild when
    they are beyond this build.
    """
    reconnects = Reconnects()
    async with (
        open_connection(config, name, reconnects=reconnects) as nc,
        _erasing_connection(config, name, nc) as erasing_nc,
    ):
        js = JetStream(nc, domain=config.nats_js_domain, erasing_nc=erasing_nc)
        try:
            checked = await once_settled(
                lambda: _checked(config, nc, js, default_partitions, choose, first_level),
                config.nats_connect_timeout_s,
            )
        except JetStreamAbsent as exc:
            raise ConfigError(
                f"JetStream at {config.nats_url} is not enabled ({exc}): nats-server -js"
            ) from exc
        except BrokerError as exc:
            raise ConfigError(f"JetStream at {config.nats_url} refused: {exc}") from exc
        cluster = dataclasses.replace(checked, reconnects=reconnects)
        async with AsyncExitStack() as stack:
            watch = ServerWatch(nc, cluster.config, cluster.subjects, cluster.server)
            await stack.enter_async_context(_running(watch.run()))
            await stack.enter_async_context(_running(cluster.level.run()))
            if registry is not None:
                registry.register(cluster.malformed)
                await stack.enter_async_context(_running(NatsWatch(nc, registry).run()))
            yield cluster


async def _checked(
    config: ClusterConfig,
    nc: Client,
    js: JetStream,
    default_partitions: int,
    choose: ChoosePrefix | None,
    first_level: int,
) -> Cluster:
    """The level comes first: what is beyond it may be made otherwise than this build knows. It is
    read again behind the streams, with which it may have been made.
    """
    if choose is not None and (prefix := await choose(js, config.prefix)) != config.prefix:
        # What is configured is that of the other side.
        config = dataclasses.replace(config, prefix=prefix, num_partitions=None)
    moved = (await MoveRecords(js, config.prefix).moved_to()).record
    if moved is not None and moved.is_over:
        raise ConfigError(
            f"prefix is {config.prefix!r}, but the service has moved to {moved.prefix!r}, and its "
            f"old streams were deleted: give --prefix {moved.prefix}"
        )
    level = FeatureLevel(js, Subjects(config.prefix))
    await level.read()
    level.check()
    subjects = await ensure_streams(js, config, default_partitions, first_level)
    await level.read()
    level.check()
    return Cluster(config, nc, js, subjects, OwnershipLog(js, subjects, level))


@asynccontextmanager
async def _erasing_connection(
    config: ClusterConfig, name: str, main: Client
) -> AsyncIterator[Client]:
    """The same one where nobody else is to erase."""
    login = config.eraser_login()
    if login is None:
        yield main
        return
    async with companion_connection(config, name, ERASER, login, main) as nc:
        yield nc


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
