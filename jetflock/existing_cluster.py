"""The streams of a running service, for commands that look after it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jetflock.local_service import is_listening, local_nats_urls
from shared.cluster import Cluster
from shared.codec import decode
from shared.config import ClusterConfig
from shared.connection import connect
from shared.errors import BrokerError, ConfigError
from shared.jetstream import JetStream
from shared.kv_bucket import KvBucket
from shared.ownership import OwnershipLog
from shared.protocol.role_cards import Incarnation
from shared.subjects import Subjects


@asynccontextmanager
async def existing_cluster(config: ClusterConfig, command: str) -> AsyncIterator[Cluster]:
    """Streams are looked at, never made: a command knows nothing of how they should be.

    Without a --nats-url, and without a server at the default one, those of the `jetflock serve`
    that runs on this machine. Raises ConfigError.
    """
    config = _with_local_nats(config)
    nc = await connect(config, command.replace(" ", "-"))
    try:
        js = JetStream(nc)
        names = Subjects(config.prefix)
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
        subjects = Subjects(config.prefix, incarnation.num_partitions)
        yield Cluster(config, nc, js, subjects, OwnershipLog(js, subjects))
    finally:
        await nc.close()


def _with_local_nats(config: ClusterConfig) -> ClusterConfig:
    default = ClusterConfig().nats_url
    if config.nats_url != default or is_listening(default):
        return config
    urls = local_nats_urls()
    if len(urls) > 1:
        raise ConfigError(
            f"several jetflock serve run here; choose one: --nats-url {' or '.join(urls)}"
        )
    return dataclasses.replace(config, nats_url=urls[0]) if urls else config
