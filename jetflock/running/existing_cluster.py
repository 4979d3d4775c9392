"""The streams of a running service, for commands that look after it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jetflock.running.running_service import with_service
from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.cluster import Cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.nats_client.connection import connect
from shared.protocol.codec import decode
from shared.protocol.role_cards import Incarnation
from shared.subjects import Subjects
from shared.telemetry.log import setup_command_logging
from shared.token_log.ownership import OwnershipLog


@asynccontextmanager
async def existing_cluster(
    config: ClusterConfig, command: str, *, waits: bool = False
) -> AsyncIterator[Cluster]:
    """Streams are looked at, never made: a command knows nothing of how they should be.

    Without a --nats-url those of the `jetflock serve` that runs here. A server of this machine
    that is not there is waited for only by who `waits`. Raises ConfigError, also OutdatedBuild.
    """
    setup_command_logging(command)
    config = with_service(config, waits=waits)
    nc = await connect(config, command.replace(" ", "-"))
    try:
        js = JetStream(nc, domain=config.nats_js_domain)
        names = Subjects(config.prefix, js_domain=config.nats_js_domain)
        try:
            await js.api(f"STREAM.INFO.{names.dead_stream}")
            entry = await KvBucket(js, names.meta_bucket).get("incarnation")
            if entry is None:
                raise BrokerError(f"{names.meta_bucket} does not say how they were made")
        except BrokerError as exc:
            raise ConfigError(
                f"no stream {names.dead_stream} at {config.nats_url}: {exc}; check --nats-url "
                "(jetflock serve prints it) and --prefix"
            ) from exc
        incarnation = decode(Incarnation, entry.value)
        subjects = dataclasses.replace(names, num_partitions=incarnation.num_partitions)
        cluster = Cluster(config, nc, js, subjects, OwnershipLog(js, subjects))
        await cluster.level.read()
        cluster.level.check()
        yield cluster
    finally:
        await nc.close()
