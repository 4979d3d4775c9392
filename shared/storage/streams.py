"""Streams, buckets and consumers: made once, idempotently, and checked by every role at start."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator
from typing import Any

from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.config import ClusterConfig
from shared.errors import BrokerError, CasConflict, ConfigError, IncarnationMismatch
from shared.protocol.codec import decode, encode, unpack_map
from shared.protocol.request import FEATURE_LEVEL, PROTOCOL_VERSION
from shared.protocol.role_cards import Incarnation, LevelRecord
from shared.storage.byte_budget import check_account, room_error
from shared.subjects import LANES, LEVEL_KEY, Subjects
from shared.telemetry.log import get_logger

DEFAULT_PARTITIONS = 4
HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_TTL_S = 4.0  # absence of a heartbeat key means death
LEASE_PERIOD_S = 1.25  # of a detokenizer: a slow link or machine makes it longer
TURN_TTL_S = 5.0
EVENTS_MAX_AGE_S = 86_400.0
# Workers discard what is too old, with its prompt, and say so; without any the broker does, later.
DEAD_MARGIN_S = 86_400.0

_MAX_EVENTS = 10_000

_NS = 1_000_000_000
_ERR_CONSUMER_NOT_FOUND = 10014
_ERR_STREAM_EXISTS = 10058
ERR_STREAM_NOT_FOUND = 10059
_DUPLICATE_WINDOW_S = 120
_MIN_AGE_S = 1.0

# A difference in one of these breaks a promise of the protocol: the role refuses to run.
_MUST_MATCH = (
    "subjects",
    "retention",
    "storage",
    "discard",
    "allow_direct",
    "max_msgs_per_subject",
    "discard_new_per_subject",
)
_MUST_NOT_SHRINK = ("max_age",)
_AGES = ("max_deadline_s", "resume_window_s", "response_ttl_s", "files_ttl_s", "dead_ttl_s")
_AGE_FLAGS = {  # by how streams' names end
    "_RESULTS": "--resume-window-s",
    "_RESPONSES": "--response-ttl-s",
    "_DEAD": "--dead-ttl-s",
    "_BILLS": "--bills-ttl-s",
    "_usage": "--bills-ttl-s",
    "_BATCH": "--files-ttl-s",
    "_files": "--files-ttl-s",
    "_batches": "--files-ttl-s",
}

log = get_logger(__name__)


async def ensure_streams(
    js: JetStream,
    config: ClusterConfig,
    default_partitions: int = DEFAULT_PARTITIONS,
    first_level: int = FEATURE_LEVEL,
) -> Subjects:
    """Make what is missing, check what is there, compare the incarnation.

    `default_partitions` counts when streams are made and the configuration leaves it open;
    `first_level` is the feature level of streams that are made: no older role has used them.
    Returns the subjects to use. Raises IncarnationMismatch, ConfigError, or BrokerError when
    JetStream is off.
    """
    wanted = config.num_partitions
    await _refuse_other_version(js, config.prefix)
    _check_ages(config)
    if config.response_ttl_s < config.token_retention_s:
        raise ConfigError(
            f"response_ttl_s is {config.response_ttl_s:g}, must be at least max_deadline_s + "
            f"resume_window_s + 60, {config.token_retention_s:g}"
        )
    if config.bills_ttl_s and config.bills_ttl_s < config.token_retention_s:
        raise ConfigError(
            f"bills_ttl_s is {config.bills_ttl_s:g}, must be 0 or at least max_deadline_s + "
            f"resume_window_s + 60, {config.token_retention_s:g}"
        )
    subjects = Subjects(config.prefix, wanted or default_partitions, js.domain)
    await _check_domain(js, subjects)
    await _make_missing(js, config, stream_configs(config, subjects))
    incarnation = await _ensure_incarnation(js, subjects, first_level)
    if wanted is not None and wanted != incarnation.num_partitions:
        raise IncarnationMismatch(
            f"num_partitions is {wanted}, but the streams with prefix {config.prefix!r} were made "
            f"with {incarnation.num_partitions}; use that, or another --prefix"
        )
    return dataclasses.replace(subjects, num_partitions=incarnation.num_partitions)


def _check_ages(config: ClusterConfig) -> None:
    """To the server an age of 0 is none at all. Raises ConfigError."""
    for field in (
        "max_deadline_s",
        "resume_window_s",
        "response_ttl_s",
        "files_ttl_s",
        "dead_ttl_s",
    ):
        if (age_s := getattr(config, field)) < _MIN_AGE_S:
            raise ConfigError(f"{field} is {age_s:g}, must be at least {_MIN_AGE_S:g}")


async def ensure_consumers(
    js: JetStream, subjects: Subjects, pool: str, ack_wait_s: float, max_ack_pending: int = 100_000
) -> None:
    """The shared durable pull consumers of a pool, one a lane; one that differs is updated."""
    stream = subjects.requests_stream
    for lane in LANES:
        name = subjects.consumer(pool, lane.token)
        wanted = {
            "durable_name": name,
            "filter_subject": subjects.requests(pool, lane.token),
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": int(ack_wait_s * _NS),
            "max_deliver": -1,
            "max_ack_pending": max_ack_pending,
            "max_waiting": 4096,
        }
        try:
            existing = (await js.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]
        except BrokerError as exc:
            if exc.err_code != _ERR_CONSUMER_NOT_FOUND:
                raise
            existing = {}
        if any(existing.get(field) != value for field, value in wanted.items()):
            await js.api(
                f"CONSUMER.DURABLE.CREATE.{stream}.{name}",
                {"stream_name": stream, "config": wanted},
            )


def stream_configs(config: ClusterConfig, subjects: Subjects) -> list[dict[str, Any]]:
    """The JetStream configuration of every stream and bucket."""
    base = {
        "storage": "file",
        "num_replicas": config.replicas,
        "discard": "new",
        "retention": "limits",
        "allow_direct": True,
    }
    window_ns = _DUPLICATE_WINDOW_S * _NS
    return [
        base
        | stream
        # The server refuses a window in which messages are gone already.
        | {"duplicate_window": min(window_ns, stream.get("max_age") or window_ns)}
        for stream in (
            *_message_streams(config, subjects),
            *_key_streams(config, subjects),
            *_object_streams(config, subjects),
        )
    ]


def _message_streams(config: ClusterConfig, subjects: Subjects) -> Iterator[dict[str, Any]]:
    """What is not said of one is as `stream_configs` has it for all."""
    prefix = subjects.prefix
    yield {
        "name": subjects.requests_stream,
        "subjects": [subjects.requests("*", "*")],
        "retention": "workqueue",
        "max_msgs_per_subject": 1,
        "discard_new_per_subject": True,
        "max_msgs": config.queue_max_msgs,
        "max_bytes": config.queue_max_bytes,
    }
    yield {
        "name": subjects.tokens_stream,
        "subjects": [f"{prefix}.own.*.*", f"{prefix}.tok.*.*"],
        "max_bytes": config.log_max_bytes,
        "max_age": int(config.token_retention_s * _NS),
    }
    yield {
        "name": subjects.results_stream,
        "subjects": [f"{prefix}.done.*"],
        "max_bytes": config.results_max_bytes,
        "max_age": int(config.resume_window_s * _NS),
    }
    yield {
        "name": subjects.dead_stream,
        "subjects": [f"{prefix}.dead.*"],
        "max_bytes": config.dead_max_bytes,
        "max_age": int((config.dead_ttl_s + DEAD_MARGIN_S) * _NS),
    }
    yield {
        "name": subjects.responses_stream,
        "subjects": [subjects.response("*")],
        "max_bytes": config.response_store_bytes,
        "max_age": int(config.response_ttl_s * _NS),
    }
    yield {
        "name": subjects.events_stream,
        "subjects": [f"{prefix}.event.*"],
        "discard": "old",
        "max_msgs": _MAX_EVENTS,
        "max_age": int(EVENTS_MAX_AGE_S * _NS),
    }
    yield {
        "name": subjects.batch_stream,
        "subjects": [f"{prefix}.batch.*.*"],
        "max_bytes": config.files_max_bytes,
        "max_age": int(config.files_ttl_s * _NS),
    }
    if config.bills_ttl_s:
        yield {
            "name": subjects.bills_stream,
            "subjects": [subjects.bills("*")],
            "discard": "old",
            "max_bytes": config.bills_max_bytes,
            "max_age": int(config.bills_ttl_s * _NS),
        }


def _key_streams(config: ClusterConfig, subjects: Subjects) -> Iterator[dict[str, Any]]:
    """The streams of the KV buckets."""
    ttls_s = {
        subjects.workers_bucket: HEARTBEAT_TTL_S,
        subjects.roles_bucket: HEARTBEAT_TTL_S,
        subjects.models_bucket: 0.0,
        subjects.owners_bucket: 0.0,
        subjects.floors_bucket: 0.0,
        subjects.attached_bucket: config.token_retention_s,
        subjects.idempotency_bucket: config.token_retention_s,
        subjects.turns_bucket: TURN_TTL_S,
        subjects.files_bucket: config.files_ttl_s,
        subjects.batches_bucket: config.files_ttl_s,
        subjects.meta_bucket: 0.0,
        subjects.secrets_bucket: 0.0,
        **({subjects.usage_bucket: config.bills_ttl_s} if config.bills_ttl_s else {}),
    }
    for bucket, ttl_s in ttls_s.items():
        is_limited = bucket in subjects.key_buckets
        yield {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": 1,
            "max_age": int(ttl_s * _NS),
            # Else whoever may write one key may, by a header, remove all others.
            "allow_rollup_hdrs": False,
            **({"max_bytes": config.keys_max_bytes} if is_limited else {}),
        }


def _object_streams(config: ClusterConfig, subjects: Subjects) -> Iterator[dict[str, Any]]:
    """The streams of the object stores."""
    files_ns = int(config.files_ttl_s * _NS)
    limits = {
        subjects.objects_bucket: {"max_bytes": config.objects_max_bytes},
        subjects.files_bucket: {"max_bytes": config.files_max_bytes, "max_age": files_ns},
    }
    for bucket, limit in limits.items():
        yield {
            "name": f"OBJ_{bucket}",
            "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            "allow_rollup_hdrs": True,
            **limit,
        }


async def _check_domain(js: JetStream, subjects: Subjects) -> None:
    """That the JetStream which answers is the one that is meant.

    A leaf node with a JetStream of its own would take a second, empty set of streams, whose
    requests nobody serves. Raises ConfigError.
    """
    stream = subjects.requests_stream
    found = await _domain_of(js, f"STREAM.INFO.{stream}")
    answering = found if found is not None else await _domain_of(js, "INFO")
    if answering and answering != js.domain:
        raise ConfigError(
            f"nats_js_domain is {js.domain!r}, but the JetStream that answers is of domain "
            f"{answering!r}: give --nats-js-domain {answering} if it holds the streams; at a leaf "
            "node give the domain of its hub"
        )
    probe = subjects.request("none", "none", "none", "none")
    if found is not None or not await js.is_stored_somewhere(probe):
        return
    if await _domain_of(js, f"STREAM.INFO.{stream}") is None:  # else a role has just made them
        raise ConfigError(
            f"there is no stream {stream} in the JetStream that answers, but another one that is "
            f"reached from here stores {subjects.request('*', '*', '*', '*')}: at a leaf node give "
            "--nats-js-domain with the domain of its hub; else use another --prefix"
        )


async def _domain_of(js: JetStream, operation: str) -> str | None:
    """What answers; "" for a JetStream without a domain, None when there is no such stream."""
    try:
        return str((await js.api(operation)).get("domain", ""))
    except BrokerError as exc:
        if exc.err_code != ERR_STREAM_NOT_FOUND:
            raise
        return None


async def _make_missing(
    js: JetStream, config: ClusterConfig, streams: list[dict[str, Any]]
) -> None:
    """None is made where not all have room."""
    missing = [stream for stream in streams if not await _is_there(js, stream)]
    if not missing:
        return
    account = await js.api("INFO")
    # Another role makes them, too: what it has made meanwhile must not be counted twice.
    missing = [stream for stream in missing if not await _is_there(js, stream)]
    check_account(config, missing, account)
    for stream in missing:
        await _make(js, config, stream)


async def _is_there(js: JetStream, wanted: dict[str, Any]) -> bool:
    """Raises IncarnationMismatch when it is another one than it must be."""
    name = wanted["name"]
    try:
        existing = (await js.api(f"STREAM.INFO.{name}"))["config"]
    except BrokerError as exc:
        if exc.err_code != ERR_STREAM_NOT_FOUND:
            raise
        return False
    check_stream(name, wanted, existing)
    _log_limits(name, wanted, existing)
    return True


async def _make(js: JetStream, config: ClusterConfig, wanted: dict[str, Any]) -> None:
    name = wanted["name"]
    try:
        await js.api(f"STREAM.CREATE.{name}", wanted)
    except BrokerError as exc:
        if (error := room_error(config, wanted, exc)) is not None:
            raise error from exc
        if exc.err_code != _ERR_STREAM_EXISTS:
            raise
        await _is_there(js, wanted)
    else:
        log.debug("stream_created", stream=name)


def check_stream(name: str, wanted: dict[str, Any], existing: dict[str, Any]) -> None:
    """Raises IncarnationMismatch when a promise of the protocol would not hold."""
    for field in _MUST_MATCH:
        if field in wanted and wanted[field] != existing.get(field):
            raise IncarnationMismatch(
                f"stream {name} has {field}={existing.get(field)!r}, jetflock needs "
                f"{wanted[field]!r}; use another --prefix, or remove the stream"
            )
    for field in _MUST_NOT_SHRINK:
        have, need = existing.get(field, 0), wanted.get(field, 0)
        if have and (have < need or not need):
            raise IncarnationMismatch(
                f"stream {name} has {field}={have / _NS:g} s, this configuration needs "
                f"{need / _NS:g} s; lower {_age_flags(name)}, or edit the stream"
            )


def _age_flags(stream: str) -> str:
    """The flags that decide how long it keeps a message."""
    for ending, flags in _AGE_FLAGS.items():
        if stream.endswith(ending):
            return flags
    return "--max-deadline-s or --resume-window-s"


def _log_limits(name: str, wanted: dict[str, Any], existing: dict[str, Any]) -> None:
    """They may differ: an operator may have changed them since."""
    for field in ("max_msgs", "max_bytes", "num_replicas", "max_age"):
        if field in wanted and wanted[field] != existing.get(field):
            log.info(
                "stream_limit_differs",
                stream=name,
                field=field,
                have=existing.get(field),
                wanted=wanted[field],
            )


async def _refuse_other_version(js: JetStream, prefix: str) -> None:
    """Before anything is looked at that another version may have made otherwise."""
    try:
        entry = await KvBucket(js, Subjects(prefix).meta_bucket).get("incarnation")
    except BrokerError as exc:
        if exc.err_code != ERR_STREAM_NOT_FOUND:
            raise
        return
    version = PROTOCOL_VERSION if entry is None else unpack_map(entry.value).get("protocol_version")
    if version != PROTOCOL_VERSION:
        raise IncarnationMismatch(
            f"the streams with prefix {prefix!r} speak protocol {version}, this build "
            f"{PROTOCOL_VERSION}: let the older roles finish what is queued there, and start this "
            "build with another --prefix"
        )


async def _ensure_incarnation(js: JetStream, subjects: Subjects, first_level: int) -> Incarnation:
    """Write the incarnation record if there is none; compare the streams with it."""
    meta = KvBucket(js, subjects.meta_bucket)
    created = await created_times(js, subjects)
    mine = Incarnation(
        id=secrets.token_hex(8),
        protocol_version=PROTOCOL_VERSION,
        prefix=subjects.prefix,
        num_partitions=subjects.num_partitions,
        stream_created=created,
    )
    entry = await meta.get("incarnation")
    if entry is None:
        try:
            await _begin_level(meta, first_level)
            await meta.put_if("incarnation", encode(mine), 0)
        except CasConflict:
            return await _ensure_incarnation(js, subjects, first_level)
        return mine
    stored = decode(Incarnation, entry.value)
    if stored.prefix != subjects.prefix:
        raise IncarnationMismatch(
            f"the streams were made for prefix {stored.prefix!r}, not {subjects.prefix!r}"
        )
    if stored.stream_created != created:
        raise IncarnationMismatch(
            "a stream was deleted and made again, so sequence numbers started over; "
            f"remove all streams with prefix {subjects.prefix!r}, or use another --prefix; "
            "if all of them were restored from a backup: jetflock setup --after-restore"
        )
    return stored


async def _begin_level(meta: KvBucket, level: int) -> None:
    """Before the incarnation: whoever finds these streams finds it."""
    if level > 1:
        with contextlib.suppress(CasConflict):
            await meta.put_if(LEVEL_KEY, encode(LevelRecord(level)), 0)


async def created_times(js: JetStream, subjects: Subjects) -> dict[str, str]:
    """The times of the streams whose sequence numbers others refer to. Raises BrokerError."""
    return {
        name: str((await js.api(f"STREAM.INFO.{name}"))["created"])
        for name in (subjects.requests_stream, subjects.tokens_stream)
    }
