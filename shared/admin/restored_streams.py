"""Takes streams that were restored from a backup for those that roles knew."""

from __future__ import annotations

import secrets

import msgspec

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.config import ClusterConfig
from shared.errors import BrokerError, CasConflict, ConfigError
from shared.protocol.codec import decode, encode
from shared.protocol.role_cards import Incarnation
from shared.storage.streams import created_times
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

log = get_logger(__name__)


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
