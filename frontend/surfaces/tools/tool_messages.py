"""Messages about tools, as chat templates take them."""

from __future__ import annotations

import json
from typing import Any

from frontend.models.chat_template import ChatTemplate
from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.tools.plain_json import PlainJson
from frontend.surfaces.tools.calls import InvalidJson, read_arguments
from shared.errors import InvalidRequest


def checked_tool_calls(tool_calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls of an earlier turn: templates want the arguments as an object, OpenAI sends JSON."""
    if not isinstance(tool_calls, list) or not all(isinstance(call, dict) for call in tool_calls):
        raise InvalidRequest(f"'{where}' must be a list of objects", param=where)
    return [_checked_call(call, f"{where}[{i}]") for i, call in enumerate(tool_calls)]


def _checked_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(
            f"'{where}.function.name' is required",
            param=f"{where}.function.name",
            code="missing_field",
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = read_arguments(arguments)
        except InvalidJson:  # a call that was cut: the template gets what there was
            return call
    if not isinstance(arguments, dict | None):
        raise InvalidRequest(
            f"'{where}.function.arguments' must be an object in JSON",
            param=f"{where}.function.arguments",
            code="invalid_type",
        )
    return {**call, "function": {**function, "arguments": arguments or {}}}


def for_template(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    declared: list[dict[str, Any]],
    parser: ToolParser | None,
) -> list[dict[str, Any]]:
    """Messages as this template can take them.

    `declared`: tools that the model is told of; `parser`: of the calls that it may write.
    """
    if not template.knows_tools:
        messages = told_in_words(messages, declared, parser or PlainJson())
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


def told_in_words(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], parser: ToolParser
) -> list[dict[str, Any]]:
    """For a chat template that knows no tools: they stand in the system message."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    words = (
        "You may call functions. Each line describes one:\n"
        f"{functions}\n"
        f"To call one, answer with nothing but {parser.example}"
    )
    if not tools:
        words = ""
    told = [_in_words(message) for message in messages]
    if words and told[0]["role"] in ("system", "developer"):
        return [{**told[0], "content": f"{told[0]['content']}\n\n{words}"}, *told[1:]]
    return [{"role": "system", "content": words}, *told] if words else told


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"The function returned: {message['content']}"}
    if not message.get("tool_calls"):
        return message
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
    return {"role": "assistant", "content": "\n".join(filter(None, [message["content"], *calls]))}
