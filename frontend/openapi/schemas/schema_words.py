"""What the schemas of answers are made of."""

from __future__ import annotations

from typing import Any

COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}
OPTIONAL_TEXT = {"type": ["string", "null"]}
OPTIONAL_COUNT = {"type": ["integer", "null"], "minimum": 0}


def object_of(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    """All properties are required but those that are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def list_of(item: dict[str, Any]) -> dict[str, Any]:
    """Of so many as there are."""
    return {"type": "array", "items": item}


def ref(name: str) -> dict[str, Any]:
    """To a component of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
