"""`logits_processors`: functions of the operator's file, in vLLM's shape."""

from __future__ import annotations

import json
from typing import Any

from shared.errors import InvalidRequest
from shared.protocol.sampling import ProcessorCall

MAX_PROCESSORS = 8
MAX_PARAMS_BYTES = 4096
_NAME = "logits_processors"
_FIELDS = frozenset({"qualname", "args", "kwargs"})


def checked_processors(
    given: list[Any] | None, known: tuple[str, ...]
) -> tuple[ProcessorCall, ...]:
    """`known`: those of the model's workers. Raises InvalidRequest."""
    given = given or []
    if len(given) > MAX_PROCESSORS:
        raise InvalidRequest(
            f"'{_NAME}' holds {len(given)} processors, at most {MAX_PROCESSORS}", param=_NAME
        )
    return tuple(_checked(each, f"{_NAME}[{idx}]", known) for idx, each in enumerate(given))


def _checked(given: Any, where: str, known: tuple[str, ...]) -> ProcessorCall:
    call = {"qualname": given} if isinstance(given, str) else given
    if not isinstance(call, dict) or not isinstance(call.get("qualname"), str):
        raise InvalidRequest(
            f"'{where}' must be a name, or an object with its 'qualname' and 'kwargs'",
            param=where,
            code="invalid_type",
        )
    if unknown := sorted(call.keys() - _FIELDS):
        raise InvalidRequest(f"'{where}' has the unknown field {unknown[0][:100]!r}", param=where)
    if call.get("args"):
        raise InvalidRequest(f"'{where}.args' is not supported, only 'kwargs'", param=where)
    name, params = call["qualname"], call.get("kwargs") or {}
    if name not in known:
        words = f"there are {', '.join(known)}" if known else "the operator has registered none"
        raise InvalidRequest(f"'{where}' is {name[:100]!r}: {words}", param=where)
    if not isinstance(params, dict):
        raise InvalidRequest(
            f"'{where}.kwargs' must be an object", param=where, code="invalid_type"
        )
    text = json.dumps(params, separators=(",", ":"), sort_keys=True)
    if len(text) > MAX_PARAMS_BYTES:
        raise InvalidRequest(
            f"'{where}.kwargs' has {len(text)} bytes of JSON, at most {MAX_PARAMS_BYTES}",
            param=where,
        )
    return ProcessorCall(name, text)
