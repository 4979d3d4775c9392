"""The fields of a body that are about tools: `tools`, `tool_choice`, `parallel_tool_calls`."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from frontend.fields.json_schema import SchemaReader
from shared.errors import InvalidRequest, UnsupportedParameter

MAX_TOOLS = 128
NAME_PATTERN = "^[A-Za-z0-9_.-]{1,128}$"
_NAME = re.compile(NAME_PATTERN)
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Any  # JSON schema, as given; None: it has none
    is_strict: bool
    param: str  # where it stands in the body

    def schema(self) -> dict[str, Any]:
        """Of the arguments, reduced to what constrains them. Raises InvalidRequest.

        Objects have the listed properties only, unless they say otherwise: a function knows no
        others. Without `strict`, a schema that cannot be closed stays open.
        """
        if self.parameters is None:
            return _NO_PARAMETERS
        param = f"{self.param}.parameters"
        try:
            schema = SchemaReader(param, is_closed=True).read(self.parameters)
        except UnsupportedParameter:
            if self.is_strict:
                raise
            schema = SchemaReader(param).read(self.parameters)
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
        return (
            self.is_required
            or self.is_single
            or len(self.callable) < len(self.declared)
            or any(tool.is_strict for tool in self.callable)
        )


class ToolShape(enum.Enum):
    """Where an API has a function's name."""

    CHAT = "chat"  # {"type": "function", "function": {"name": ...}}
    RESPONSES = "responses"  # {"type": "function", "name": ...}

    def function_of(self, holder: dict[str, Any]) -> Any:
        return holder.get("function") if self is ToolShape.CHAT else holder

    def path(self, where: str) -> str:
        return f"{where}.function" if self is ToolShape.CHAT else where


def read_tools(
    tools: Any, tool_choice: Any, parallel: bool | None, shape: ToolShape = ToolShape.CHAT
) -> ToolUse | None:
    """None when nothing shall be called. Raises InvalidRequest."""
    known = list(_tools(tools, shape)) if tools else []
    names: dict[str, Tool] = {}
    for tool in known:
        if names.setdefault(tool.name, tool) is not tool:
            raise InvalidRequest(
                f"'tools' holds two functions named {tool.name!r}", param=f"{tool.param}.name"
            )
    if (tool_choice in (None, "auto") and not known) or tool_choice == "none":
        return None
    choice = _choice(tool_choice, names, shape)
    return ToolUse(
        [_declared(tool, shape) for tool in tools],
        choice.callable,
        is_required=choice.is_required,
        is_single=choice.is_single or parallel is False,
    )


class _Choice(NamedTuple):
    callable: tuple[Tool, ...]
    is_required: bool
    is_single: bool = False


def _choice(choice: Any, names: dict[str, Tool], shape: ToolShape) -> _Choice:
    known = tuple(names.values())
    if choice in (None, "auto", "required"):
        if not known:
            raise _no_tools("is 'required'")
        return _Choice(known, is_required=choice == "required")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        where = shape.path("tool_choice")
        return _Choice((_named(choice, names, where, shape),), is_required=True, is_single=True)
    if kind == "allowed_tools":
        return _allowed(choice, names, shape)
    if isinstance(kind, str):
        raise UnsupportedParameter(
            "tool_choice.type",
            f"is {kind[:100]!r}: only function and allowed_tools are supported",
        )
    raise InvalidRequest(
        f"'tool_choice' is {_short(choice)}, must be none, auto, required, a function or "
        "allowed tools",
        param="tool_choice",
    )


def _allowed(choice: dict[str, Any], names: dict[str, Tool], shape: ToolShape) -> _Choice:
    where = "tool_choice"
    if shape is ToolShape.CHAT:
        where += ".allowed_tools"
        choice = choice.get("allowed_tools") or {}
    mode, tools = (choice.get(key) for key in ("mode", "tools")) if choice else (None, None)
    if mode not in ("auto", "required"):
        raise InvalidRequest(
            f"'{where}.mode' is {_short(mode)}, must be auto or required", param=f"{where}.mode"
        )
    if not isinstance(tools, list) or not tools or not all(isinstance(t, dict) for t in tools):
        raise InvalidRequest(f"'{where}.tools' must be a list of functions", param=f"{where}.tools")
    allowed = [
        _named(tool, names, shape.path(f"{where}.tools[{i}]"), shape)
        for i, tool in enumerate(tools)
    ]
    by_name = {tool.name: tool for tool in allowed}
    return _Choice(tuple(by_name.values()), is_required=mode == "required")


def _named(holder: Any, names: dict[str, Tool], where: str, shape: ToolShape) -> Tool:
    """The tool that a choice names."""
    function = shape.function_of(holder)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest(
            f"'{where}.name' is required", param=f"{where}.name", code="missing_field"
        )
    if not names:
        raise _no_tools(f"names {name[:128]!r}")
    if name not in names:
        raise InvalidRequest(
            f"'tool_choice' names {name[:128]!r}, which is not in 'tools'", param=f"{where}.name"
        )
    return names[name]


def _no_tools(words: str) -> InvalidRequest:
    return InvalidRequest(f"'tool_choice' {words}, and there are no 'tools'", param="tool_choice")


def _declared(tool: dict[str, Any], shape: ToolShape) -> dict[str, Any]:
    """As chat templates know it."""
    if shape is ToolShape.CHAT:
        return tool
    function = {key: tool[key] for key in _FUNCTION_KEYS if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _tools(tools: Any, shape: ToolShape) -> Iterator[Tool]:
    if not isinstance(tools, list):
        raise InvalidRequest("'tools' must be a list", param="tools", code="invalid_type")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"'tools' holds {len(tools)}, at most {MAX_TOOLS}", param="tools")
    for i, tool in enumerate(tools):
        yield _tool(tool, f"tools[{i}]", shape)


def _tool(tool: Any, where: str, shape: ToolShape) -> Tool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise UnsupportedParameter(
            f"{where}.type", f"is {kind[:100]!r}: only function is supported"
        )
    function = shape.function_of(tool) if kind == "function" else None
    if not isinstance(function, dict):
        raise InvalidRequest(
            f"'{where}' must be an object with type function"
            + (", and a function" if shape is ToolShape.CHAT else ""),
            param=where,
            code="invalid_type",
        )
    if shape is ToolShape.RESPONSES:
        _refuse_options(function, where)
    where = shape.path(where)
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


def _refuse_options(function: dict[str, Any], where: str) -> None:
    """What OpenAI runs on its own side. Raises UnsupportedParameter."""
    for key in ("async", "defer_loading"):
        if function.get(key):
            raise UnsupportedParameter(f"{where}.{key}")
    if function.get("allowed_callers") not in (None, ["direct"]):
        raise UnsupportedParameter(f"{where}.allowed_callers")


def _short(value: Any) -> str:
    return json.dumps(value)[:100]
