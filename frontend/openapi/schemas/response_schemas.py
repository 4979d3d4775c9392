"""JSON Schema of kept responses."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import COUNT, OPTIONAL_TEXT, TEXT, list_of, object_of


def response_schemas() -> dict[str, dict[str, Any]]:
    """A response, a page of its input, and one that is gone."""
    return {
        "Response": _response(),
        "InputItems": object_of(
            {
                "object": {"const": "list"},
                "data": list_of(_item()),
                "first_id": TEXT,
                "last_id": TEXT,
                "has_more": {"type": "boolean"},
            }
        ),
        "Deleted": object_of(
            {"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}}
        ),
    }


def token_usage() -> dict[str, Any]:
    """Of a response, and of a batch."""
    return object_of(
        {
            "input_tokens": COUNT,
            "input_tokens_details": object_of(
                {"cached_tokens": COUNT, "cache_write_tokens": COUNT}, "cache_write_tokens"
            ),
            "output_tokens": COUNT,
            "output_tokens_details": object_of({"reasoning_tokens": COUNT}),
            "total_tokens": COUNT,
        }
    )


def _response() -> dict[str, Any]:
    error = object_of({"code": {"const": "server_error"}, "message": TEXT})
    status = ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    return object_of(
        {
            "id": TEXT,
            "object": {"const": "response"},
            "created_at": COUNT,
            "status": {"enum": status},
            "error": {"anyOf": [error, {"type": "null"}]},
            "incomplete_details": {
                "anyOf": [object_of({"reason": {"const": "max_output_tokens"}}), {"type": "null"}]
            },
            "model": TEXT,
            "output": list_of(_item()),
            "instructions": OPTIONAL_TEXT,
            "metadata": {"type": "object", "additionalProperties": TEXT},
            "previous_response_id": OPTIONAL_TEXT,
            "background": {"type": "boolean"},
            "store": {"type": "boolean"},
            "temperature": {"type": "number"},
            "top_p": {"type": "number"},
            "text": {"type": "object", "required": ["format"]},
            "tools": {"type": "array"},
            "tool_choice": {"type": ["string", "object"]},
            "parallel_tool_calls": {"type": "boolean"},
            "usage": token_usage(),
        },
        "usage",
    )


def _item() -> dict[str, Any]:
    """Of a conversation."""
    state = {"id": TEXT, "status": {"enum": ["in_progress", "completed", "incomplete"]}}
    parts = list_of({"type": "object", "required": ["type", "text"]})
    message = {"role": {"enum": ["user", "assistant", "system", "developer"]}, "content": parts}
    of_kinds: dict[str, dict[str, Any]] = {
        "message": message,
        "reasoning": {"summary": parts, "content": parts},
        "function_call": {"call_id": TEXT, "name": TEXT, "arguments": TEXT},
        "function_call_output": {"call_id": TEXT, "output": TEXT},
    }
    return {
        "anyOf": [
            object_of({**state, "type": {"const": kind}, **own}) for kind, own in of_kinds.items()
        ]
    }
