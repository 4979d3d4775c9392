"""Gives streams that are in use another number of copies."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from shared.broker.settling import once_settled
from shared.cluster import Cluster
from shared.errors import BrokerError, ConfigError
from shared.storage.stream_quorum import servers_behind
from shared.storage.streams import stream_configs
from shared.telemetry.log import get_logger

_LOOK_S = 0.2

log = get_logger(__name__)


async def change_replicas(cluster: Cluster, timeout_s: float) -> list[str]:
    """As many as the configuration says, of each stream and bucket; returns when all copies are
    complete. Those that were changed. Raises ConfigError.

    The leader that serves a stream's clients fills its new copies meanwhile; consumers follow.
    """
    names = [wanted["name"] for wanted in stream_configs(cluster.config, cluster.subjects)]
    changed = [name for name in names if await _change(cluster, name)]
    deadline = time.monotonic() + timeout_s
    for name in names:
        await _wait_complete(cluster, name, deadline)
    log.info("replicas_changed", streams=changed, replicas=cluster.config.replicas)
    return changed


async def _change(cluster: Cluster, stream: str) -> bool:
    """Whether it had another number."""
    replicas = cluster.config.replicas
    config = (await _info(cluster, stream))["config"]
    if config["num_replicas"] == replicas:
        return False
    wanted = config | {"num_replicas": replicas}
    try:
        await once_settled(
            lambda: cluster.js.api(f"STREAM.UPDATE.{stream}", wanted),
            cluster.config.nats_connect_timeout_s,
        )
    except BrokerError as exc:
        raise ConfigError(
            f"stream {stream} cannot have {replicas} replicas: {exc}; as many servers must be "
            "there, with room in their stores"
        ) from exc
    return True


async def _wait_complete(cluster: Cluster, stream: str, deadline: float) -> None:
    while not _is_complete(await _info(cluster, stream), cluster.config.replicas):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"stream {stream} has not got all its {cluster.config.replicas} copies in time; "
                "they are still being made: ask again"
            )
        await asyncio.sleep(_LOOK_S)


def _is_complete(info: dict[str, Any], replicas: int) -> bool:
    group = info.get("cluster") or {}
    others = group.get("replicas") or []
    if replicas == 1:
        return not others
    is_led = bool(group.get("leader")) and len(others) == replicas - 1
    return is_led and not servers_behind(info)


async def _info(cluster: Cluster, stream: str) -> dict[str, Any]:
    return await once_settled(
        lambda: cluster.js.api(f"STREAM.INFO.{stream}"), cluster.config.nats_connect_timeout_s
    )
