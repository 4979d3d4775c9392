"""JSON Schema of `GET /cluster`."""

from __future__ import annotations

from typing import Any

from frontend.cluster.request_paths import Left
from shared.protocol.role_cards import WorkerState
from shared.subjects import JOB_CLASSES

Schema = dict[str, Any]

_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_AMOUNT: Schema = {"type": "number", "minimum": 0}
_TEXT: Schema = {"type": "string"}
_WORKER_COUNTS = (
    *("num_running", "num_waiting", "max_running", "num_kv_tokens", "num_steps", "num_finished"),
    *("num_generated", "num_redelivered", "num_released", "num_fenced"),
    *("num_prefix_queries", "num_prefix_hits"),
)
_TOTALS = ("num_redelivered", "num_released", "num_fenced_writes", "num_dead")


def cluster_schema() -> Schema:
    """What only operators see is optional."""
    return _object(
        {
            "version": _TEXT,
            "frontend": _TEXT,
            "at": _AMOUNT,
            "is_operator": {"type": "boolean"},
            "models": _by_name(_model()),
            "workers": _by_name(_worker()),
            "queues": _by_name(_by_name(_queue(), names=JOB_CLASSES)),
            "totals": _object(dict.fromkeys(_TOTALS, _COUNT)),
            "events": _by_name(_event()),
            "requests": _by_name(_request()),
        },
        admin_url=_TEXT,
        frontends=_by_name(_role()),
        detokenizers=_by_name(_role()),
    )


def _model() -> Schema:
    adapter = _object({"revision": _TEXT, "rank": _COUNT})
    return _object(
        {
            "pool": _TEXT,
            "revision": _TEXT,
            "max_context_len": _COUNT,
            "created": _COUNT,
            "adapters": _by_name(adapter),
        }
    )


def _worker() -> Schema:
    return _object(
        {
            "model": _TEXT,
            "revision": _TEXT,
            "state": {"enum": [state.value for state in WorkerState]},
            "started_at": _AMOUNT,
            "kv_cache_usage": {"type": "number", "minimum": 0, "maximum": 1},
            **dict.fromkeys(_WORKER_COUNTS, _COUNT),
        },
        phase=_TEXT,
        progress=_AMOUNT,
        tokens_per_s=_NUMBER,
        host=_TEXT,
        pid=_COUNT,
    )


def _queue() -> Schema:
    return _object({"num_waiting": _COUNT, "num_taken": _COUNT, "oldest_wait_s": _NUMBER})


def _event() -> Schema:
    return {
        "type": "object",
        "properties": {"event": {"enum": ["worker", "scale"]}, "at": _AMOUNT, "model": _TEXT},
        "required": ["event", "at", "model"],
    }


def _request() -> Schema:
    hop = _object(
        {"worker": _TEXT, "epoch": _COUNT, "at": _AMOUNT},
        left={"enum": [why.value for why in Left]},
    )
    counts = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens")
    return _object(
        {
            "model": _TEXT,
            "route": _TEXT,
            "arrived_at": _AMOUNT,
            "is_running": {"type": "boolean"},
            **dict.fromkeys(counts, _COUNT),
            "paths": {"type": "array", "items": {"type": "array", "items": hop}},
        },
        status=_COUNT,
        finish=_TEXT,
        ttft_ms=_AMOUNT,
        e2e_ms=_AMOUNT,
        tenant=_TEXT,
    )


def _role() -> Schema:
    return _object({"host": _TEXT, "pid": _COUNT, "started_at": _AMOUNT}, num_fenced=_COUNT)


def _object(properties: Schema, **optional: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties | optional,
        "required": list(properties),
        "additionalProperties": False,
    }


def _by_name(item: Schema, names: tuple[str, ...] = ()) -> Schema:
    schema: Schema = {"type": "object", "additionalProperties": item}
    return schema | ({"propertyNames": {"enum": list(names)}} if names else {})
