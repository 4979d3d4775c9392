"""`options`, `format` and `think` as fields of a chat or a completion."""

from __future__ import annotations

import json
from typing import Any

from frontend.fields.request_body import BodyReader
from frontend.fields.unknown_fields import UnknownFields
from frontend.surfaces.ollama.body import (
    OPTIONS_IGNORED,
    OPTIONS_REFUSED,
    OllamaFields,
    OllamaOptions,
)
from shared.errors import InvalidRequest

_READER = BodyReader(OllamaOptions, OPTIONS_REFUSED, OPTIONS_IGNORED, prefix="options.")
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "stop",
    "presence_penalty", "frequency_penalty", "repeat_last_n",
)  # fmt: skip
# How chats and completions call it, and how Ollama does.
NAMES = {
    **{name: f"options.{name}" for name in (*_SAME, "seed")},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
}


def fields_of(body: OllamaFields, unknown: UnknownFields) -> dict[str, Any]:
    """What both kinds of bodies take. Raises InvalidRequest."""
    return {**_sampling(body.options or {}, unknown), **_format(body.format), "stream": body.stream}


def thinking_of(think: Any) -> dict[str, Any]:
    """Of a chat. Raises InvalidRequest."""
    match think:
        case None:
            return {}
        case True:
            return {"chat_template_kwargs": {"enable_thinking": True}}
        case False:
            kwargs = {"enable_thinking": False}
            return {"chat_template_kwargs": kwargs, "include_reasoning": False}
        case "low" | "medium" | "high" | "max":
            return {"reasoning_effort": think}
        case _:
            raise InvalidRequest(
                f"'think' is {json.dumps(think)[:100]}, must be true, false, low, medium, high or "
                "max",
                param="think",
            )


def _sampling(given: dict[str, Any], unknown: UnknownFields) -> dict[str, Any]:
    options = _READER.read(given, unknown)
    fields = {name: getattr(options, name) for name in _SAME}
    if options.num_predict is not None and options.num_predict >= 0:
        fields["max_tokens"] = options.num_predict  # below 0: the rest of the context
    if options.seed is not None and options.seed >= 0:
        fields["seed"] = options.seed  # below 0: any
    fields["repetition_penalty"] = options.repeat_penalty
    return fields


def _format(wanted: Any) -> dict[str, Any]:
    if wanted is None or wanted == "":
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if not isinstance(wanted, dict):
        raise InvalidRequest(
            f"'format' is {json.dumps(wanted)[:100]}, must be json or a JSON schema",
            param="format",
        )
    schema = {"name": "answer", "schema": wanted}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
