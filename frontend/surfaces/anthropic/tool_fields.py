"""`tools` and `tool_choice` as those of a chat."""

from __future__ import annotations

import json
from typing import Any

from shared.errors import InvalidRequest, UnsupportedParameter

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_CLIENT_KINDS = (None, "custom")


def chat_tools(tools: Any) -> list[dict[str, Any]] | None:
    """What is inside them the chat's reader checks. Raises InvalidRequest."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidRequest(
            "'tools' must be a list of objects", param="tools", code="invalid_type"
        )
    return [_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _chat_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in _CLIENT_KINDS:
        raise UnsupportedParameter(
            f"{where}.type",
            f"is {json.dumps(kind)[:100]}: only tools of the client (custom) are supported",
        )
    for key in ("defer_loading", "input_examples"):
        if tool.get(key):
            raise UnsupportedParameter(f"{where}.{key}")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        raise UnsupportedParameter(f"{where}.allowed_callers")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequest(
            f"'{where}.input_schema' is required: a JSON schema of an object",
            param=f"{where}.input_schema",
            code="missing_field" if tool.get("input_schema") is None else "invalid_type",
        )
    named = {"name": "name", "description": "description", "input_schema": "parameters"}
    function = {to: tool[key] for key, to in named.items() if tool.get(key) is not None}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def chat_tool_choice(choice: Any) -> dict[str, Any]:
    """Fields of the chat. Raises InvalidRequest."""
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    fields: dict[str, Any] = {}
    if isinstance(kind, str) and kind in _CHOICES:
        fields["tool_choice"] = _CHOICES[kind]
    elif kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    else:
        raise InvalidRequest(
            f"'tool_choice.type' is {json.dumps(kind)[:100]}, must be auto, any, tool or none",
            param="tool_choice.type",
        )
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields
