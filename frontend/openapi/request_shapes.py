"""Pieces of JSON Schema that request bodies are described with."""

from __future__ import annotations

from typing import Any

from frontend.fields.sampling_fields import MAX_STOP_CHARS

Schema = dict[str, Any]

SOME_TEXT: Schema = {"type": "string", "minLength": 1}
STOP_STRING: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}


def optional(*options: Schema) -> Schema:
    """One of these, or null."""
    return {"anyOf": [*options, {"type": "null"}]}


def list_of(item: Schema, **bounds: int) -> Schema:
    """Of so many as `bounds` say."""
    return {"type": "array", "items": item, **bounds}


def object_with(required: Schema, more: Schema | None = None) -> Schema:
    """With these fields, and more that may be missing."""
    return {"type": "object", "properties": required | (more or {}), "required": list(required)}


def named(schema: str) -> Schema:
    """One of the document's components."""
    return {"$ref": f"#/components/schemas/{schema}"}
