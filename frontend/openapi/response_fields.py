"""JSON Schema of what /v1/responses takes in a shape of its own: items and tools."""

from __future__ import annotations

from typing import Any

from frontend.images.source import DETAILS
from frontend.surfaces.chat.reasoning import EFFORTS
from frontend.surfaces.responses.input_items import IMAGE, MAX_ITEMS, ROLES
from frontend.surfaces.tools.tool_fields import MAX_TOOLS, NAME_PATTERN

_TEXT = {"type": "string"}
_NAME = {"type": "string", "pattern": NAME_PATTERN}
_SOME_TEXT = {"type": "string", "minLength": 1}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _parts(*kinds: str) -> dict[str, Any]:
    part = _object({"type": {"enum": list(kinds)}, "text": _TEXT}, "type", "text")
    return {"type": "array", "items": part}


def _or_null(*options: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*options, {"type": "null"}]}


_IMAGE_PART = _object(
    {
        "type": {"const": IMAGE},
        "image_url": {"type": "string", "description": "data: or https: URL"},
        "detail": {"enum": list(DETAILS)},
    },
    "type",
    "image_url",
)
_CONTENT_PART = {"anyOf": [_parts("input_text", "output_text")["items"], _IMAGE_PART]}
_MESSAGE = _object(
    {
        "type": {"const": "message"},
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": _CONTENT_PART}]},
    },
    "role",
    "content",
)
_CALL = _object(
    {
        "type": {"const": "function_call"},
        "call_id": _SOME_TEXT,
        "name": _SOME_TEXT,
        "arguments": {"type": "string", "description": "an object in JSON"},
    },
    "type",
    "call_id",
    "name",
    "arguments",
)
_RESULT = _object(
    {
        "type": {"const": "function_call_output"},
        "call_id": _SOME_TEXT,
        "output": {"anyOf": [_TEXT, _parts("input_text")]},
    },
    "type",
    "call_id",
    "output",
)
_REASONING = _object(
    {
        "type": {"const": "reasoning"},
        "summary": _parts("summary_text"),
        "content": _or_null(_parts("reasoning_text")),
    },
    "type",
    "summary",
)
_ITEMS = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_ITEMS,
    "items": {"anyOf": [_MESSAGE, _CALL, _RESULT, _REASONING]},
}
_TOOL = _object(
    {
        "type": {"const": "function"},
        "name": _NAME,
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "type",
    "name",
)
_NAMED = _object({"type": {"const": "function"}, "name": _NAME}, "type", "name")
_ALLOWED = _object(
    {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": _NAMED, "minItems": 1},
    },
    "type",
    "mode",
    "tools",
)
RESPONSE_FIELDS: dict[str, dict[str, Any]] = {
    "input": {"anyOf": [_TEXT, _ITEMS]},
    "reasoning": _or_null(_object({"effort": _or_null({"enum": list(EFFORTS)})})),
    "tools": _or_null({"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
    "tool_choice": _or_null({"enum": ["none", "auto", "required"]}, _NAMED, _ALLOWED),
}
