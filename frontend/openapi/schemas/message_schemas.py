"""JSON Schema of answers in Anthropic's words."""

from __future__ import annotations

from typing import Any

from frontend.openapi.schemas.schema_words import COUNT, OPTIONAL_TEXT, TEXT, list_of, object_of


def message_schemas() -> dict[str, dict[str, Any]]:
    """A message, its tokens counted, and an error."""
    usage = {
        "input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_read_input_tokens": COUNT,
        "output_tokens": COUNT,
        "output_tokens_details": object_of({"thinking_tokens": COUNT}),
    }
    message = {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": list_of(
            {
                "type": "object",
                "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}},
                "required": ["type"],
            }
        ),
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "stop_sequence": OPTIONAL_TEXT,
        "usage": object_of(usage, "output_tokens_details"),
    }
    details = object_of({"error_code": OPTIONAL_TEXT, "param": OPTIONAL_TEXT})
    error = object_of({"type": TEXT, "message": TEXT, "details": details})
    return {
        "Message": object_of(message),
        "MessageTokens": object_of({"input_tokens": COUNT}),
        "MessageError": object_of({"type": {"const": "error"}, "error": error}),
    }
