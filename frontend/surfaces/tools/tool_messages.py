"""Messages about tools, as chat templates take them."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from frontend.models.chat_template import ChatTemplate
from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.tools.plain_json import PlainJson
from frontend.surfaces.tools.calls import InvalidJson, read_arguments
from shared.errors import InvalidRequest


class PastFunction(msgspec.Struct):
    """What was called; arguments are an object, or its JSON."""

    name: str
    arguments: str | dict[str, Any] | None = None


class PastCall(msgspec.Struct):
    """A call of an earlier turn."""

    function: PastFunction
    id: str | None = None
    type: Literal["function"] | None = None


def checked_call(given: dict[str, Any], call: PastCall, where: str) -> dict[str, Any]:
    """As chat templates want it. Raises InvalidRequest."""
    arguments = arguments_of(call.function, where)
    return {**given, "function": {**given["function"], "arguments": arguments}}


def arguments_of(function: PastFunction, where: str) -> dict[str, Any] | str:
    """An object; of a call that was cut, the text that there was.

    `where`: the call in the body. Raises InvalidRequest.
    """
    arguments = function.arguments
    if isinstance(arguments, str):
        try:
            arguments = read_arguments(arguments)
        except InvalidJson:
            return arguments
    if not isinstance(arguments, dict | None):
        raise InvalidRequest(
            f"'{where}.function.arguments' must be an object in JSON",
            param=f"{where}.function.arguments",
            code="invalid_type",
        )
    return arguments or {}


def for_template(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    declared: list[dict[str, Any]],
    parser: ToolParser | None,
) -> list[dict[str, Any]]:
    """Messages as this template can take them.

    `declared`: tools that the model may call; `parser`: of the calls that it may write.
    """
    if not template.knows_tools:
        messages = described_in_text(messages, declared, parser or PlainJson())
    elif template.tool_parser is not None:
        own = template.tool_parser
        messages = own.messages(messages, template.source)
        messages = own.with_tools(messages, declared, template.source)
    if template.knows_developer_role:
        return messages
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]


def declared_to(template: ChatTemplate, declared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client declares, as this template takes it."""
    form = template.tool_parser
    return declared if form is None else form.declared(declared)


def described_in_text(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], parser: ToolParser
) -> list[dict[str, Any]]:
    """Messages for a chat template that knows no tools: they stand in the system message."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    words = (
        "You may call functions. Each line describes one:\n"
        f"{functions}\n"
        f"To call one, answer with nothing but {parser.example}"
    )
    if not tools:
        words = ""
    plain = [_in_words(message) for message in messages]
    if words and plain[0]["role"] in ("system", "developer"):
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{words}"}, *plain[1:]]
    return [{"role": "system", "content": words}, *plain] if words else plain


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"The function returned: {message['content']}"}
    if not message.get("tool_calls"):
        return message
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
    return {"role": "assistant", "content": "\n".join(filter(None, [message["content"], *calls]))}
