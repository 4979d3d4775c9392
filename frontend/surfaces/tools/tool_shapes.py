"""`tools` and `tool_choice` as each API writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shared.errors import UnsupportedParameter

MAX_TOOLS = 128
Mode = Literal["none", "auto", "required"]
ToolName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_.-]{1,128}$(?!\n)",
        description="1 to 128 letters, digits, _, - and .",
    ),
]
# Of what a service would do on its own side.
NotHere = Annotated[Any, msgspec.Meta(description="refused where it asks for something")]


class Function(msgspec.Struct):
    """A function that the model may call; its parameters are a JSON schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionName(msgspec.Struct):
    """A function by its name."""

    name: str


class ChatTool(msgspec.Struct):
    """A tool of a chat."""

    function: Function
    type: Literal["function"] = "function"


class ChosenChatTool(msgspec.Struct, tag_field="type", tag="function"):
    """The one that is to be called."""

    function: FunctionName


class AllowedChatTool(msgspec.Struct):
    """One of those that may be called."""

    function: FunctionName
    type: Literal["function"] = "function"


class AllowedOfChat(msgspec.Struct):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedChatTool], msgspec.Meta(min_length=1)]


class AllowedChatTools(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """That no others may be called."""

    allowed_tools: AllowedOfChat


ChatTools = Annotated[list[ChatTool], msgspec.Meta(max_length=MAX_TOOLS)]
ChatToolChoice = Mode | ChosenChatTool | AllowedChatTools


class ResponseTool(Function):
    """A tool of /v1/responses."""

    type: Literal["function"] = "function"
    async_: NotHere = msgspec.field(default=None, name="async")
    defer_loading: NotHere = None
    allowed_callers: NotHere = None

    def check(self, where: str) -> None:
        """Raises UnsupportedParameter."""
        refuse_hosted(self, where, "async_", "defer_loading", "allowed_callers")


class ChosenResponseTool(msgspec.Struct, tag_field="type", tag="function"):
    """The one that is to be called."""

    name: str


class AllowedResponseTool(msgspec.Struct):
    """One of those that may be called."""

    name: str
    type: Literal["function"] = "function"


class AllowedResponseTools(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """That no others may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedResponseTool], msgspec.Meta(min_length=1)]


ResponseTools = Annotated[list[ResponseTool], msgspec.Meta(max_length=MAX_TOOLS)]
ResponseToolChoice = Mode | ChosenResponseTool | AllowedResponseTools


class MessageTool(msgspec.Struct):
    """A tool of /v1/messages."""

    name: ToolName
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    defer_loading: NotHere = None
    input_examples: NotHere = None
    allowed_callers: NotHere = None

    def check(self, where: str) -> None:
        """Raises UnsupportedParameter."""
        refuse_hosted(self, where, "defer_loading", "input_examples", "allowed_callers")

    def function(self) -> Function:
        """As the other APIs have it."""
        return Function(self.name, self.description, self.input_schema, self.strict)


class MessageToolChoice(msgspec.Struct):
    """Which tool is to be called; a name goes with the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


MessageTools = Annotated[list[MessageTool], msgspec.Meta(max_length=MAX_TOOLS)]


def refuse_hosted(tool: msgspec.Struct, where: str, *names: str) -> None:
    """What a service would do on its own side. Raises UnsupportedParameter."""
    for name in names:
        value = getattr(tool, name)
        if value and value != ["direct"]:  # as `allowed_callers`: by the model itself
            raise UnsupportedParameter(f"{where}.{name.removesuffix('_')}")
