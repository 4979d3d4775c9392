"""What the parameters of a function take, where calls are not JSON."""

from __future__ import annotations

from typing import Any

from shared.protocol.reply import ParamKind


def param_kinds(parameters: Any) -> dict[str, ParamKind]:
    """Of the parameters of a function, but for those that take text alone."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    kinds = {name: _kind(schema) for name, schema in properties.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(schema: Any) -> ParamKind | None:
    types = _types(schema)
    if types and "string" not in types:
        return ParamKind.JSON
    return ParamKind.TEXT_OR_NULL if "null" in types else None


def _types(schema: Any) -> set[str]:
    """That a value may have; empty for any."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return {kind} if isinstance(kind, str) else {each for each in kind if isinstance(each, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {"string" if isinstance(value, str) else "other" for value in values}
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return set().union(*map(_types, options))
    return {"other"} if "$ref" in schema else set()
