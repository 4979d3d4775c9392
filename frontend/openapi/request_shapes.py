"""JSON Schema of what stands inside request bodies: messages, items, tools, and choices of them.

Their readers check them by hand, so that what is wrong is told by its place and in words of ours.
"""

from __future__ import annotations

from typing import Any

from frontend.fields.sampling_fields import MAX_STOP_CHARS
from frontend.images.source import DETAILS
from frontend.surfaces.chat.chat_request import ROLES
from frontend.surfaces.chat.reasoning import EFFORTS
from frontend.surfaces.responses.input_items import IMAGE, MAX_ITEMS
from frontend.surfaces.responses.input_items import ROLES as ITEM_ROLES
from frontend.surfaces.tools.tool_fields import MAX_TOOLS, NAME_PATTERN

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}
STOP_STRING: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_NAME: Schema = {"type": "string", "pattern": NAME_PATTERN}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_FLAG_OR_NULL: Schema = {"type": ["boolean", "null"]}
_EFFORT: Schema = {"enum": list(EFFORTS)}


def optional(*options: Schema) -> Schema:
    """One of these, or null."""
    return {"anyOf": [*options, {"type": "null"}]}


def list_of(item: Schema, **bounds: int) -> Schema:
    """Of so many as `bounds` say."""
    return {"type": "array", "items": item, **bounds}


def object_with(required: Schema, more: Schema | None = None) -> Schema:
    """With these fields, and more that may be missing."""
    return {"type": "object", "properties": required | (more or {}), "required": list(required)}


def _kind_of(*kinds: str, **fields: Schema) -> Schema:
    """Told by its `type`; all fields are required."""
    return object_with({"type": {"enum": list(kinds)}, **fields})


def _typed(kind: str, required: Schema, more: Schema | None = None) -> Schema:
    return object_with({"type": {"const": kind}, **required}, more)


_TOOL_FIELDS: Schema = {
    "description": _TEXT_OR_NULL,
    "parameters": {"type": ["object", "null"]},
    "strict": _FLAG_OR_NULL,
}
_CHOICES: Schema = {"enum": ["none", "auto", "required"]}
_MODE: Schema = {"enum": ["auto", "required"]}
_TEXT_PART = _typed("text", {"text": TEXT})
_URL: Schema = {
    "type": "string",
    "description": "data: or https: URL of a PNG, JPEG, WebP or GIF",
}
_ARGUMENTS: Schema = {"anyOf": [{**TEXT, "description": "an object in JSON"}, {"type": "object"}]}
_DETAIL: Schema = {"enum": list(DETAILS)}


def chat_message() -> Schema:
    """Of a chat."""
    image = _typed("image_url", {"image_url": object_with({"url": _URL}, {"detail": _DETAIL})})
    function = object_with({"name": TEXT}, {"arguments": _ARGUMENTS})
    call = object_with({"function": function}, {"id": TEXT, "type": {"const": "function"}})
    more = {
        "content": optional(TEXT, list_of({"anyOf": [_TEXT_PART, image, TEXT]})),
        "name": TEXT,
        "tool_calls": optional(list_of(call)),
        "tool_call_id": TEXT,
    }
    return object_with({"role": {"enum": sorted(ROLES)}}, more)


def chat_tools() -> Schema:
    """Of a chat."""
    function = object_with({"name": _NAME}, _TOOL_FIELDS)
    return optional(list_of(_typed("function", {"function": function}), maxItems=MAX_TOOLS))


def chat_tool_choice() -> Schema:
    """Of a chat."""
    named = _typed("function", {"function": object_with({"name": _NAME})})
    allowed = object_with({"mode": _MODE, "tools": list_of(named, minItems=1)})
    return optional(_CHOICES, named, _typed("allowed_tools", {"allowed_tools": allowed}))


def response_fields() -> dict[str, Schema]:
    """What /v1/responses takes in a shape of its own."""
    tool = _typed("function", {"name": _NAME}, _TOOL_FIELDS)
    named = _typed("function", {"name": _NAME})
    allowed = _typed("allowed_tools", {"mode": _MODE, "tools": list_of(named, minItems=1)})
    return {
        "input": {"anyOf": [TEXT, response_items(MAX_ITEMS)]},
        "conversation": optional(TEXT, object_with({"id": TEXT})),
        "reasoning": optional(
            {"type": "object", "properties": {"effort": optional(_EFFORT)}, "required": []}
        ),
        "tools": optional(list_of(tool, maxItems=MAX_TOOLS)),
        "tool_choice": optional(_CHOICES, named, allowed),
    }


def response_items(max_items: int) -> Schema:
    """Of a conversation."""
    return list_of({"anyOf": list(_items())}, minItems=1, maxItems=max_items)


def _items() -> tuple[Schema, ...]:
    image_url = {"type": "string", "description": "data: or https: URL"}
    image = _typed(IMAGE, {"image_url": image_url}, {"detail": _DETAIL})
    part = {"anyOf": [_kind_of("input_text", "output_text", text=TEXT), image, TEXT]}
    content = {"anyOf": [TEXT, list_of(part)]}
    output = {"anyOf": [TEXT, list_of({"anyOf": [_kind_of("input_text", text=TEXT), image, TEXT]})]}
    arguments = {"type": "string", "description": "an object in JSON"}
    call = {"call_id": SOME_TEXT, "name": SOME_TEXT, "arguments": arguments}
    return (
        object_with(
            {"role": {"enum": list(ITEM_ROLES)}, "content": content}, {"type": {"const": "message"}}
        ),
        _typed("function_call", call),
        _typed("function_call_output", {"call_id": SOME_TEXT, "output": output}),
        _typed(
            "reasoning",
            {},
            {
                "summary": optional(_texts("summary_text")),
                "content": optional(_texts("reasoning_text")),
            },
        ),
    )


def _texts(kind: str) -> Schema:
    """A text, or a list of them, as parts or bare."""
    return {"anyOf": [TEXT, list_of({"anyOf": [_kind_of(kind, text=TEXT), TEXT]})]}


def message_fields() -> dict[str, Schema]:
    """What /v1/messages takes in a shape of its own."""
    texts = {"anyOf": [TEXT, list_of(_TEXT_PART)]}
    content = {"anyOf": [TEXT, list_of({"anyOf": list(_blocks())})]}
    roles = {"enum": ["user", "assistant", "system"]}
    tool = object_with(
        {"name": _NAME, "input_schema": {"type": "object"}},
        {"type": {"enum": ["custom", None]}, "description": _TEXT_OR_NULL, "strict": _FLAG_OR_NULL},
    )
    choice = object_with(
        {"type": {"enum": ["auto", "any", "tool", "none"]}},
        {"name": _NAME, "disable_parallel_tool_use": {"type": "boolean"}},
    )
    return {
        "system": optional(texts),
        "messages": list_of(object_with({"role": roles, "content": content}), minItems=1),
        "tools": optional(list_of(tool, maxItems=MAX_TOOLS)),
        "tool_choice": optional(choice),
        "thinking": optional(_kind_of("adaptive", "disabled", "enabled")),
        "output_config": optional({"type": "object"}),
    }


def _blocks() -> tuple[Schema, ...]:
    source = {"anyOf": [_kind_of("base64", media_type=TEXT, data=TEXT), _kind_of("url", url=TEXT)]}
    image = _kind_of("image", source=source)
    result = {"anyOf": [TEXT, list_of({"anyOf": [_TEXT_PART, image]})]}
    return (
        _TEXT_PART,
        image,
        _kind_of("thinking", thinking=TEXT),
        _kind_of("tool_use", id=TEXT, name=TEXT, input={"type": "object"}),
        object_with(
            {"type": {"enum": ["tool_result"]}, "tool_use_id": TEXT}, {"content": optional(result)}
        ),
    )


def ollama_images() -> Schema:
    """In base64."""
    return optional(list_of(SOME_TEXT))


def ollama_message() -> Schema:
    """Of /api/chat."""
    function = object_with({"name": TEXT}, {"arguments": _ARGUMENTS})
    more = {
        "content": _TEXT_OR_NULL,
        "thinking": _TEXT_OR_NULL,
        "images": ollama_images(),
        "tool_calls": optional(list_of(object_with({"function": function}))),
        "tool_name": _TEXT_OR_NULL,
    }
    return object_with({"role": {"enum": ["system", "user", "assistant", "tool"]}}, more)
