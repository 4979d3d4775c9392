"""The streams that a service moves to: made as the old ones are, but for what is said otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any

from shared.broker.jetstream import JetStream
from shared.config import ClusterConfig
from shared.subjects import Subjects

_NS = 1_000_000_000
_LOG_MARGIN_S = 60.0  # of `ClusterConfig.token_retention_s`


async def new_streams_config(
    js: JetStream, old: Subjects, config: ClusterConfig, prefix: str
) -> ClusterConfig:
    """What an operator has given wins; everything else is as it is. Raises BrokerError."""
    requests = await _stream(js, old.requests_stream)
    tokens = await _stream(js, old.tokens_stream)
    results = await _stream(js, old.results_stream)
    responses = await _stream(js, old.responses_stream)
    batch = await _stream(js, old.batch_stream)
    dead = await _stream(js, old.dead_stream)
    resume_window_s = _age_s(results)
    as_it_is: dict[str, Any] = {
        "num_partitions": old.num_partitions,
        "replicas": requests["num_replicas"],
        "queue_max_msgs": requests["max_msgs"],
        "queue_max_bytes": requests["max_bytes"],
        "log_max_bytes": tokens["max_bytes"],
        "results_max_bytes": results["max_bytes"],
        "files_max_bytes": batch["max_bytes"],
        "files_ttl_s": _age_s(batch),
        "resume_window_s": resume_window_s,
        "max_deadline_s": _age_s(tokens) - resume_window_s - _LOG_MARGIN_S,
        "response_ttl_s": _age_s(responses),
        "response_store_bytes": responses["max_bytes"],
        "dead_max_bytes": dead["max_bytes"],
    }
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    kept = {name: value for name, value in as_it_is.items() if _is_default(config, name, defaults)}
    return dataclasses.replace(config, prefix=prefix, **kept)


def _is_default(config: ClusterConfig, name: str, defaults: dict[str, Any]) -> bool:
    return bool(getattr(config, name) == defaults[name])


async def _stream(js: JetStream, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await js.api(f"STREAM.INFO.{name}"))["config"]
    return found


def _age_s(stream: dict[str, Any]) -> float:
    return float(stream["max_age"] / _NS)
