"""The fields of a chat that are about tools: `tools`, `tool_choice`, `parallel_tool_calls`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from frontend.requests.json_schema import SchemaReader
from shared.errors import InvalidRequest, UnsupportedParameter

MAX_TOOLS = 128
NAME_PATTERN = "^[A-Za-z0-9_.-]{1,128}$"
_NAME = re.compile(NAME_PATTERN)
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Any  # JSON schema, as given; None: it has none
    is_strict: bool
    param: str  # where it stands in the body

    def schema(self) -> dict[str, Any]:
        """Of the arguments, reduced to what constrains them. Raises InvalidRequest."""
        if self.parameters is None:
            return _NO_PARAMETERS
        param = f"{self.param}.parameters"
        schema = SchemaReader(param, is_closed=self.is_strict).read(self.parameters)
        assert isinstance(schema, dict)
        if schema.setdefault("type", "object") != "object":
            raise InvalidRequest(
                f"'{param}.type' is {_short(schema['type'])}, must be object: arguments have names",
                param=f"{param}.type",
            )
        return schema


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools a model is told of, and how it may call them."""

    declared: list[dict[str, Any]]  # as the chat template gets them
    callable: tuple[Tool, ...]
    is_required: bool  # the answer is calls, and nothing else
    is_single: bool  # at most one call

    @property
    def is_constrained(self) -> bool:
        """Whether it takes a grammar to keep what is promised."""
        return self.is_required or self.is_single or any(tool.is_strict for tool in self.callable)


def read_tools(tools: Any, tool_choice: Any, parallel: bool | None) -> ToolUse | None:
    """None when nothing shall be called. Raises InvalidRequest."""
    known = list(_tools(tools)) if tools else []
    names: dict[str, Tool] = {}
    for tool in known:
        if names.setdefault(tool.name, tool) is not tool:
            raise InvalidRequest(
                f"'tools' holds two functions named {tool.name!r}", param=f"{tool.param}.name"
            )
    if tool_choice in (None, "auto", "none"):
        if not known or tool_choice == "none":
            return None
        return ToolUse(list(tools), tuple(known), is_required=False, is_single=parallel is False)
    if tool_choice == "required":
        _need(known, "is 'required'")
        return ToolUse(list(tools), tuple(known), is_required=True, is_single=parallel is False)
    name = _chosen_name(tool_choice)
    _need(known, f"names {name!r}")
    if name not in names:
        raise InvalidRequest(
            f"'tool_choice' names {name[:128]!r}, which is not in 'tools'",
            param="tool_choice.function.name",
        )
    return ToolUse(list(tools), (names[name],), is_required=True, is_single=True)


def _need(known: list[Tool], words: str) -> None:
    if not known:
        raise InvalidRequest(
            f"'tool_choice' {words}, and there are no 'tools'", param="tool_choice"
        )


def _chosen_name(choice: Any) -> str:
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return str(function["name"])
        raise InvalidRequest(
            "'tool_choice.function.name' is required",
            param="tool_choice.function.name",
            code="missing_field",
        )
    if isinstance(choice, dict) and isinstance(choice.get("type"), str):
        raise UnsupportedParameter(
            "tool_choice.type", f"is {choice['type'][:100]!r}: only function is supported"
        )
    raise InvalidRequest(
        f"'tool_choice' is {_short(choice)}, must be none, auto, required or a function",
        param="tool_choice",
    )


def _tools(tools: Any) -> Iterator[Tool]:
    if not isinstance(tools, list):
        raise InvalidRequest("'tools' must be a list", param="tools", code="invalid_type")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"'tools' holds {len(tools)}, at most {MAX_TOOLS}", param="tools")
    for i, tool in enumerate(tools):
        yield _tool(tool, f"tools[{i}]")


def _tool(tool: Any, where: str) -> Tool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise UnsupportedParameter(
            f"{where}.type", f"is {kind[:100]!r}: only function is supported"
        )
    function = tool.get("function") if kind else None
    if not isinstance(function, dict):
        raise InvalidRequest(
            f"'{where}' must be an object with type function, and a function",
            param=where,
            code="invalid_type",
        )
    where = f"{where}.function"
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidRequest(
            f"'{where}.name' is {_short(name)}, must be 1 to 128 letters, digits, _, - and .",
            param=f"{where}.name",
            code="missing_field" if name is None else "invalid_value",
        )
    for key, types, words in (
        ("description", str, "text"),
        ("strict", bool, "true or false"),
        ("parameters", dict, "an object"),
    ):
        if function.get(key) is not None and not isinstance(function[key], types):
            raise InvalidRequest(
                f"'{where}.{key}' is {_short(function[key])}, must be {words}",
                param=f"{where}.{key}",
                code="invalid_type",
            )
    return Tool(name, parameters, bool(function.get("strict")), where)


def _short(value: Any) -> str:
    return json.dumps(value)[:100]
