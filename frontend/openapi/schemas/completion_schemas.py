"""JSON Schema of answers with text."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import (
    COUNT,
    OPTIONAL_TEXT,
    TEXT,
    list_of,
    object_of,
    ref,
)


def completion_schemas() -> dict[str, dict[str, Any]]:
    """Whole ones, and their usage."""
    function = object_of({"name": TEXT, "arguments": TEXT})
    call = object_of({"id": TEXT, "type": {"const": "function"}, "function": function})
    message = object_of(
        {
            "role": {"const": "assistant"},
            "content": OPTIONAL_TEXT,
            "refusal": OPTIONAL_TEXT,
            "tool_calls": list_of(call),
            "reasoning_content": TEXT,
            "reasoning": TEXT,
        },
        "tool_calls",
        "reasoning_content",
        "reasoning",
    )
    usage = object_of(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": object_of({"cached_tokens": COUNT}),
            "completion_tokens_details": object_of({"reasoning_tokens": COUNT}),
        },
        "completion_tokens",
        "completion_tokens_details",
    )
    generated = object_of(
        {
            "text": TEXT,
            "output_ids": list_of(COUNT),
            "meta_info": {"type": "object", "required": ["id", "finish_reason"]},
            "index": COUNT,
        },
        "index",
    )
    return {
        "Usage": usage,
        "ChatCompletion": _completion("chat.completion", _choice(message=message)),
        "Completion": _completion("text_completion", _choice(text=TEXT)),
        "Generated": {"anyOf": [generated, list_of(generated)]},
    }


def _choice(**own: dict[str, Any]) -> dict[str, Any]:
    return object_of(
        {
            "index": COUNT,
            **own,
            "logprobs": {"type": ["object", "null"]},
            "finish_reason": TEXT,
            "stop_reason": {"type": ["string", "integer", "null"]},
            "matched_stop": {"type": ["string", "integer", "null"]},
            "cumulative_logprob": {"type": "number"},
        },
        "stop_reason",
        "matched_stop",
        "cumulative_logprob",
    )


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return object_of(
        {
            "id": TEXT,
            "object": {"const": kind},
            "created": COUNT,
            "model": TEXT,
            "system_fingerprint": OPTIONAL_TEXT,
            "choices": list_of(choice),
            "usage": ref("Usage"),
        }
    )
