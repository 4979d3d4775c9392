"""Streams, buckets and consumers: made once, idempotently, and checked by every role at start."""

from __future__ import annotations

import secrets
from typing import Any

from shared.codec import decode, encode
from shared.config import ClusterConfig
from shared.errors import BrokerError, CasConflict, ConfigError, IncarnationMismatch
from shared.jetstream import JetStream
from shared.kv_bucket import KvBucket
from shared.log import get_logger
from shared.protocol.request import PROTOCOL_VERSION
from shared.protocol.role_cards import Incarnation
from shared.subjects import LANES, Subjects

DEFAULT_PARTITIONS = 4
HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_TTL_S = 4.0  # absence of a heartbeat key means death
LEASE_TTL_S = 1.25
TURN_TTL_S = 5.0
EVENTS_MAX_AGE_S = 86_400.0
# Workers discard what is too old, with its prompt, and say so; without any the broker does, later.
DEAD_MARGIN_S = 86_400.0

_MAX_EVENTS = 10_000

_NS = 1_000_000_000
_ERR_CONSUMER_NOT_FOUND = 10014
_ERR_STREAM_EXISTS = 10058
_ERR_STREAM_NOT_FOUND = 10059
_DUPLICATE_WINDOW_S = 120

# A difference in one of these breaks a promise of the protocol: the role refuses to run.
_MUST_MATCH = (
    "subjects",
    "retention",
    "storage",
    "discard",
    "allow_direct",
    "max_msgs_per_subject",
)
_MUST_NOT_SHRINK = ("max_age",)

log = get_logger(__name__)


async def ensure_streams(
    js: JetStream, config: ClusterConfig, default_partitions: int = DEFAULT_PARTITIONS
) -> Subjects:
    """Make what is missing, check what is there, compare the incarnation.

    `default_partitions` counts when streams are made and the configuration leaves it open.
    Returns the subjects to use. Raises IncarnationMismatch, ConfigError, or BrokerError when
    JetStream is off.
    """
    wanted = config.num_partitions
    if config.response_ttl_s < config.token_retention_s:
        raise ConfigError(
            f"response_ttl_s is {config.response_ttl_s:g}, must be at least max_deadline_s + "
            f"resume_window_s + 60, {config.token_retention_s:g}"
        )
    subjects = Subjects(config.prefix, wanted or default_partitions)
    for stream in stream_configs(config, subjects):
        await _ensure_stream(js, stream)
    incarnation = await _ensure_incarnation(js, subjects)
    if wanted is not None and wanted != incarnation.num_partitions:
        raise IncarnationMismatch(
            f"num_partitions is {wanted}, but the streams with prefix {config.prefix!r} were made "
            f"with {incarnation.num_partitions}; use that, or another --prefix"
        )
    return Subjects(config.prefix, incarnation.num_partitions)


async def ensure_consumers(
    js: JetStream, subjects: Subjects, pool: str, ack_wait_s: float, max_ack_pending: int = 100_000
) -> None:
    """The shared durable pull consumers of a pool, one a lane; one that differs is updated."""
    stream = subjects.requests_stream
    for lane in LANES:
        name = subjects.consumer(pool, lane.token)
        wanted = {
            "durable_name": name,
            "filter_subject": subjects.request(pool, lane.token),
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
    prefix = subjects.prefix
    base = {
        "storage": "file",
        "num_replicas": config.replicas,
        "discard": "new",
        "duplicate_window": _DUPLICATE_WINDOW_S * _NS,
    }
    retention_ns = int(config.token_retention_s * _NS)
    window_ns = int(config.resume_window_s * _NS)
    files_ns = int(config.files_ttl_s * _NS)
    streams: list[dict[str, Any]] = [
        base
        | {
            "name": subjects.requests_stream,
            "subjects": [f"{prefix}.req.*.*"],
            "retention": "workqueue",
            "max_msgs": config.queue_max_msgs,
            "max_bytes": config.queue_max_bytes,
            "allow_direct": True,
        },
        base
        | {
            "name": subjects.tokens_stream,
            "subjects": [f"{prefix}.own.*.*", f"{prefix}.tok.*.*"],
            "retention": "limits",
            "max_bytes": config.log_max_bytes,
            "max_age": retention_ns,
            "allow_direct": True,
        },
        base
        | {
            "name": subjects.results_stream,
            "subjects": [f"{prefix}.done.*"],
            "retention": "limits",
            "max_age": window_ns,
            "allow_direct": True,
        },
        base
        | {
            "name": subjects.dead_stream,
            "subjects": [f"{prefix}.dead.*"],
            "retention": "limits",
            "max_bytes": config.dead_max_bytes,
            "max_age": int((config.dead_ttl_s + DEAD_MARGIN_S) * _NS),
            "allow_direct": True,
        },
        base
        | {
            "name": subjects.responses_stream,
            "subjects": [subjects.response("*")],
            "retention": "limits",
            "max_bytes": config.response_store_bytes,
            "max_age": int(config.response_ttl_s * _NS),
            "allow_direct": True,
        },
    ]
    streams.append(
        base
        | {
            "name": subjects.events_stream,
            "subjects": [f"{prefix}.event.*"],
            "retention": "limits",
            "discard": "old",
            "max_msgs": _MAX_EVENTS,
            "max_age": int(EVENTS_MAX_AGE_S * _NS),
            "allow_direct": True,
        }
    )
    streams.append(
        base
        | {
            "name": subjects.batch_stream,
            "subjects": [f"{prefix}.batch.*.*"],
            "retention": "limits",
            "max_bytes": config.files_max_bytes,
            "max_age": files_ns,
            "allow_direct": True,
        }
    )
    buckets = {
        subjects.workers_bucket: HEARTBEAT_TTL_S,
        subjects.roles_bucket: HEARTBEAT_TTL_S,
        subjects.models_bucket: 0.0,
        subjects.leases_bucket: LEASE_TTL_S,
        subjects.floors_bucket: 0.0,
        subjects.attached_bucket: config.token_retention_s,
        subjects.idempotency_bucket: config.token_retention_s,
        subjects.turns_bucket: TURN_TTL_S,
        subjects.files_bucket: config.files_ttl_s,
        subjects.batches_bucket: config.files_ttl_s,
        subjects.meta_bucket: 0.0,
    }
    for bucket, ttl_s in buckets.items():
        streams.append(
            base
            | {
                "name": f"KV_{bucket}",
                "subjects": [f"$KV.{bucket}.>"],
                "retention": "limits",
                "max_msgs_per_subject": 1,
                "max_age": int(ttl_s * _NS),
                "duplicate_window": int(
                    min(ttl_s or _DUPLICATE_WINDOW_S, _DUPLICATE_WINDOW_S) * _NS
                ),
                "allow_direct": True,
                "allow_rollup_hdrs": True,
            }
        )
    objects = {
        subjects.objects_bucket: {},
        subjects.files_bucket: {"max_bytes": config.files_max_bytes, "max_age": files_ns},
    }
    for bucket, limits in objects.items():
        streams.append(
            base
            | {
                "name": f"OBJ_{bucket}",
                "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
                "retention": "limits",
                "allow_direct": True,
                "allow_rollup_hdrs": True,
            }
            | limits
        )
    return streams


async def _ensure_stream(js: JetStream, wanted: dict[str, Any]) -> None:
    name = wanted["name"]
    try:
        existing = (await js.api(f"STREAM.INFO.{name}"))["config"]
    except BrokerError as exc:
        if exc.err_code != _ERR_STREAM_NOT_FOUND:
            raise
        try:
            await js.api(f"STREAM.CREATE.{name}", wanted)
        except BrokerError as create_exc:
            if create_exc.err_code != _ERR_STREAM_EXISTS:
                raise
            existing = (await js.api(f"STREAM.INFO.{name}"))["config"]
        else:
            log.debug("stream_created", stream=name)
            return
    check_stream(name, wanted, existing)
    _tell_limits(name, wanted, existing)


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
                f"{need / _NS:g} s; lower --max-deadline-s or --resume-window-s, or edit the stream"
            )


def _tell_limits(name: str, wanted: dict[str, Any], existing: dict[str, Any]) -> None:
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


async def _ensure_incarnation(js: JetStream, subjects: Subjects) -> Incarnation:
    """Write the incarnation record if there is none; compare the streams with it."""
    meta = KvBucket(js, subjects.meta_bucket)
    created = {
        name: str((await js.api(f"STREAM.INFO.{name}"))["created"])
        for name in (subjects.requests_stream, subjects.tokens_stream)
    }
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
            await meta.put_if("incarnation", encode(mine), 0)
        except CasConflict:
            return await _ensure_incarnation(js, subjects)
        return mine
    stored = decode(Incarnation, entry.value)
    if stored.protocol_version != PROTOCOL_VERSION or stored.prefix != subjects.prefix:
        raise IncarnationMismatch(
            f"the streams speak protocol {stored.protocol_version} under prefix "
            f"{stored.prefix!r}, this build {PROTOCOL_VERSION} under {subjects.prefix!r}"
        )
    if stored.stream_created != created:
        raise IncarnationMismatch(
            "a stream was deleted and made again, so sequence numbers started over; "
            f"remove all streams with prefix {subjects.prefix!r}, or use another --prefix"
        )
    return stored
