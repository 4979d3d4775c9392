"""Which tools an answer may call: what `tools`, `tool_choice` and `parallel_tool_calls` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontend.fields.json_schema import SchemaReader
from frontend.surfaces.tools.tool_shapes import (
    AllowedChatTools,
    AllowedResponseTools,
    ChatTool,
    ChatToolChoice,
    ChosenChatTool,
    ChosenResponseTool,
    Function,
    MessageTool,
    MessageToolChoice,
    Mode,
    ResponseTool,
    ResponseToolChoice,
)
from shared.errors import InvalidRequest, UnsupportedParameter

_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "none": "none"}  # of Anthropic's
_DECLARED = ("name", "description", "parameters", "strict")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call, and where it stands in the body."""

    function: Function
    param: str
    schema_field: str = "parameters"  # what the body calls them

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def parameters(self) -> dict[str, Any] | None:
        return self.function.parameters

    @property
    def schema_param(self) -> str:
        return f"{self.param}.{self.schema_field}"

    def declared(self) -> dict[str, Any]:
        """As chat templates know it."""
        fields = {key: getattr(self.function, key) for key in _DECLARED}
        given = {key: value for key, value in fields.items() if value is not None}
        return {"type": "function", "function": given}

    def schema(self) -> dict[str, Any]:
        """The schema of the arguments, reduced to what constrains them. Raises InvalidRequest.

        Objects have the listed properties only, unless they say otherwise: a function knows no
        others. Without `strict`, a schema that cannot be closed stays open.
        """
        if self.parameters is None:
            return _NO_PARAMETERS
        param = self.schema_param
        try:
            schema = SchemaReader(param, is_closed=True).read(self.parameters)
        except UnsupportedParameter:
            if self.function.strict:
                raise
            schema = SchemaReader(param).read(self.parameters)
        assert isinstance(schema, dict)
        if schema.setdefault("type", "object") != "object":
            raise InvalidRequest(
                f"'{param}.type' is {schema['type']!r:.100}, must be object: arguments have names",
                param=f"{param}.type",
            )
        return schema


@dataclass(frozen=True, slots=True)
class CallChoice:
    """Whether tools are to be called, and which: None is any of them."""

    mode: Mode
    names: tuple[str, ...] | None = None
    places: tuple[str, ...] = ()  # of the names in the body
    is_single: bool = False

    @classmethod
    def one(cls, name: str, place: str) -> CallChoice:
        """A call of this function, and nothing else."""
        return cls("required", (name,), (place,), is_single=True)

    @classmethod
    def some(cls, mode: Mode, names: Sequence[str], place: str) -> CallChoice:
        """A call of some of these functions. `place`: of each, whose index stands in its braces."""
        places = tuple(place.format(i) for i in range(len(names)))
        return cls(mode, tuple(names), places)


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
            or any(tool.function.strict for tool in self.callable)
        )


def tool_use(
    tools: Sequence[Tool], choice: CallChoice, parallel: bool | None = None
) -> ToolUse | None:
    """None when nothing shall be called. Raises InvalidRequest."""
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if by_name.setdefault(tool.name, tool) is not tool:
            raise InvalidRequest(
                f"'tools' holds two functions named {tool.name!r}", param=f"{tool.param}.name"
            )
    if choice.mode == "none" or not (tools or choice.names or choice.mode == "required"):
        return None
    return ToolUse(
        [tool.declared() for tool in tools],
        _callable(choice, by_name),
        is_required=choice.mode == "required",
        is_single=choice.is_single or parallel is False,
    )


def _callable(choice: CallChoice, by_name: dict[str, Tool]) -> tuple[Tool, ...]:
    if not by_name:
        asked = "is 'required'" if choice.names is None else f"names {choice.names[0][:128]!r}"
        raise InvalidRequest(
            f"'tool_choice' {asked}, and there are no 'tools'", param="tool_choice"
        )
    if choice.names is None:
        return tuple(by_name.values())
    for name, place in zip(choice.names, choice.places, strict=True):
        if name not in by_name:
            raise InvalidRequest(
                f"'tool_choice' names {name[:128]!r}, which is not in 'tools'", param=place
            )
    return tuple(by_name[name] for name in dict.fromkeys(choice.names))


def chat_tool_use(
    tools: Sequence[ChatTool] | None, choice: ChatToolChoice | None, parallel: bool | None
) -> ToolUse | None:
    """The tool use of a chat. Raises InvalidRequest."""
    known = [Tool(each.function, f"tools[{i}].function") for i, each in enumerate(tools or ())]
    match choice:
        case ChosenChatTool():
            wanted = CallChoice.one(choice.function.name, "tool_choice.function.name")
        case AllowedChatTools(allowed_tools=allowed):
            names = [tool.function.name for tool in allowed.tools]
            wanted = CallChoice.some(
                allowed.mode, names, "tool_choice.allowed_tools.tools[{}].function.name"
            )
        case _:
            wanted = CallChoice(choice or "auto")
    return tool_use(known, wanted, parallel)


def response_tool_use(
    tools: Sequence[ResponseTool] | None, choice: ResponseToolChoice | None, parallel: bool | None
) -> ToolUse | None:
    """The tool use of /v1/responses. Raises InvalidRequest."""
    known = [Tool(each, f"tools[{i}]") for i, each in enumerate(tools or ())]
    for tool, each in zip(known, tools or (), strict=True):
        each.check(tool.param)
    match choice:
        case ChosenResponseTool():
            wanted = CallChoice.one(choice.name, "tool_choice.name")
        case AllowedResponseTools():
            names = [tool.name for tool in choice.tools]
            wanted = CallChoice.some(choice.mode, names, "tool_choice.tools[{}].name")
        case _:
            wanted = CallChoice(choice or "auto")
    return tool_use(known, wanted, parallel)


def message_tool_use(
    tools: Sequence[MessageTool] | None, choice: MessageToolChoice | None
) -> ToolUse | None:
    """The tool use of /v1/messages. Raises InvalidRequest."""
    known = []
    for i, tool in enumerate(tools or ()):
        where = f"tools[{i}]"
        tool.check(where)
        known.append(Tool(tool.function(), where, "input_schema"))
    if choice is None:
        return tool_use(known, CallChoice("auto"))
    wanted = CallChoice(_MODES.get(choice.type, "required"))
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequest(
                "'tool_choice.name' is required", param="tool_choice.name", code="missing_field"
            )
        wanted = CallChoice.one(choice.name, "tool_choice.name")
    return tool_use(known, wanted, parallel=not choice.disable_parallel_tool_use)
