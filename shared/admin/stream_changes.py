"""Changes streams that are there: their copies, what writers may do, and whose they are."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.broker.settling import once_settled
from shared.broker.stream_info import servers_behind
from shared.cluster import Cluster
from shared.config import ClusterConfig
from shared.errors import BrokerError, CasConflict, ConfigError
from shared.protocol.codec import decode, encode
from shared.protocol.role_cards import Incarnation
from shared.storage.streams import created_times, stream_configs
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

_LOOK_S = 0.2
_ROLLUPS = "allow_rollup_hdrs"

log = get_logger(__name__)


async def change_replicas(cluster: Cluster, timeout_s: float) -> list[str]:
    """Gives each stream and bucket as many as the configuration says; returns when all copies are
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


def takes_rollups(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a stream that is configured so has what the stream that is wanted has not."""
    return bool(config.get(_ROLLUPS, False)) and not wanted.get(_ROLLUPS, False)


async def close_rollups(cluster: Cluster) -> list[str]:
    """Closes them on streams that an earlier version has made; returns those that were changed.
    Raises BrokerError.

    By a header of a message, its writer had all others of the stream removed.
    """
    changed = []
    for wanted in stream_configs(cluster.config, cluster.subjects):
        name = wanted["name"]
        config = (await cluster.js.api(f"STREAM.INFO.{name}"))["config"]
        if takes_rollups(config, wanted):
            await cluster.js.api(f"STREAM.UPDATE.{name}", config | {_ROLLUPS: False})
            changed.append(name)
    if changed:
        log.info("rollups_closed", streams=changed)
    return changed


async def adopt_restored(js: JetStream, config: ClusterConfig) -> None:
    """The server gives a restored stream a new time of creation, by which roles know that sequence
    numbers did not start over. They did not, if all streams are of one moment: a log that ends
    before what its readers have noted is older than the rest. Raises ConfigError.
    """
    subjects = Subjects(config.prefix, js_domain=js.domain)
    meta = KvBucket(js, subjects.meta_bucket)
    try:
        entry = await meta.get("incarnation")
        if entry is None:
            raise ConfigError(
                f"bucket {subjects.meta_bucket} holds no incarnation: it was not restored"
            )
        await _check_floors(js, subjects)
        restored = msgspec.structs.replace(
            decode(Incarnation, entry.value),
            id=secrets.token_hex(8),
            stream_created=await created_times(js, subjects),
        )
        await meta.put_if("incarnation", encode(restored), entry.revision)
    except CasConflict as exc:
        raise ConfigError("another command changes the incarnation at this moment") from exc
    except BrokerError as exc:
        raise ConfigError(
            f"{config.nats_url}: {exc}; restore all streams and buckets with prefix "
            f"{config.prefix!r} first"
        ) from exc
    log.info("restored_streams_taken", prefix=config.prefix)


async def _check_floors(js: JetStream, subjects: Subjects) -> None:
    info = await js.api(f"STREAM.INFO.{subjects.tokens_stream}")
    end = int(info["state"]["last_seq"])
    for entry in await KvBucket(js, subjects.floors_bucket).entries():
        floor = int(entry.value) if entry.value.isdigit() else 0
        if floor > end + 1:
            raise ConfigError(
                f"stream {subjects.tokens_stream} ends at {end}, but partition {entry.key} was "
                f"read up to {floor}: it is of an earlier moment than the others; restore all of "
                "one backup, made while no role ran"
            )
