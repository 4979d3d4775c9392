"""JSON Schemas of `GET /cluster`, and of the path of one request."""

from __future__ import annotations

from typing import Any

from frontend.cluster.request_paths import Left
from frontend.openapi.schemas.schema_words import COUNT, TEXT
from shared.protocol.role_cards import WorkerState
from shared.subjects import JOB_CLASSES

Schema = dict[str, Any]

_NUMBER: Schema = {"type": "number"}
_AMOUNT: Schema = {"type": "number", "minimum": 0}
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
            "version": TEXT,
            "frontend": TEXT,
            "at": _AMOUNT,
            "is_operator": {"type": "boolean"},
            "models": _by_name(_model()),
            "workers": _by_name(_worker()),
            "queues": _by_name(_by_name(_queue(), names=JOB_CLASSES)),
            "totals": _object(dict.fromkeys(_TOTALS, COUNT)),
            "events": _by_name(_event()),
            "requests": _by_name(_request()),
        },
        admin_url=TEXT,
        frontends=_by_name(_role()),
        detokenizers=_by_name(_role(num_fenced=COUNT)),
        supervisors=_by_name(_role(pool=TEXT, failure=TEXT)),
    )


def path_schema() -> Schema:
    """Of each choice the workers that had it."""
    return _object({"rid": TEXT, "paths": _paths()})


def _model() -> Schema:
    adapter = _object({"revision": TEXT, "rank": COUNT})
    return _object(
        {
            "pool": TEXT,
            "revision": TEXT,
            "max_context_len": COUNT,
            "created": COUNT,
            "adapters": _by_name(adapter),
        }
    )


def _worker() -> Schema:
    return _object(
        {
            "model": TEXT,
            "revision": TEXT,
            "state": {"enum": [state.value for state in WorkerState]},
            "started_at": _AMOUNT,
            "kv_cache_usage": {"type": "number", "minimum": 0, "maximum": 1},
            **dict.fromkeys(_WORKER_COUNTS, COUNT),
        },
        phase=TEXT,
        progress=_AMOUNT,
        remark=TEXT,
        gpu=_gpu(),
        tokens_per_s=_NUMBER,
        host=TEXT,
        pid=COUNT,
    )


def _gpu() -> Schema:
    texts = ("name", "dtype", "kv_dtype", "attention")
    kinds = ("total", "weight", "kv", "graph", "free")
    counts = ("num_gpus", *(f"{kind}_bytes" for kind in kinds))
    return _object(dict.fromkeys(texts, TEXT) | dict.fromkeys(counts, COUNT))


def _queue() -> Schema:
    return _object({"num_waiting": COUNT, "num_taken": COUNT, "oldest_wait_s": _NUMBER})


def _event() -> Schema:
    return {
        "type": "object",
        "properties": {"event": {"enum": ["worker", "scale"]}, "at": _AMOUNT, "model": TEXT},
        "required": ["event", "at", "model"],
    }


def _paths() -> Schema:
    hop = _object(
        {"worker": TEXT, "epoch": COUNT, "at": _AMOUNT},
        left={"enum": [why.value for why in Left]},
    )
    return {"type": "array", "items": {"type": "array", "items": hop}}


def _request() -> Schema:
    counts = ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens")
    return _object(
        {
            "model": TEXT,
            "route": TEXT,
            "arrived_at": _AMOUNT,
            "is_running": {"type": "boolean"},
            **dict.fromkeys(counts, COUNT),
            "paths": _paths(),
        },
        status=COUNT,
        finish=TEXT,
        ttft_ms=_AMOUNT,
        e2e_ms=_AMOUNT,
        tenant=TEXT,
    )


def _role(**more: Schema) -> Schema:
    return _object({"host": TEXT, "pid": COUNT, "started_at": _AMOUNT}, **more)


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
