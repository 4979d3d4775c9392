"""Messages about tools, as chat templates take them."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from frontend.models.chat_template import ChatTemplate
from frontend.models.tool_marks import TOOL_MARKS
from frontend.surfaces.tools.arguments import InvalidJson, read_arguments
from shared.errors import InvalidRequest
from shared.protocol.reply import ToolStyle

_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")


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
    style: ToolStyle | None,
) -> list[dict[str, Any]]:
    """Messages as this template can take them. `declared`: tools that the model is told of."""
    if not template.knows_tools:
        messages = told_in_words(messages, declared, style or ToolStyle.JSON)
    elif template.tool_style in (ToolStyle.MISTRAL, ToolStyle.MISTRAL_ARGS):
        messages = with_short_ids(messages)
    if template.knows_developer_role:
        return messages
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]


def with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mistral's templates take call ids of nine letters and digits only."""
    return [
        {
            **message,
            **({"tool_call_id": _short_id(message["tool_call_id"])} if _has_id(message) else {}),
            **({"tool_calls": [_shortened(call) for call in calls]} if calls else {}),
        }
        for message in messages
        for calls in [message.get("tool_calls")]
    ]


def _has_id(message: dict[str, Any]) -> bool:
    return isinstance(message.get("tool_call_id"), str)


def _shortened(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "id": _short_id(str(call.get("id", "")))}


def _short_id(call_id: str) -> str:
    if _MISTRAL_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def told_in_words(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], style: ToolStyle
) -> list[dict[str, Any]]:
    """For a chat template that knows no tools: they stand in the system message."""
    begin, end = TOOL_MARKS[style]
    key = "parameters" if style is ToolStyle.LLAMA3 else "arguments"
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    words = (
        "You may call functions. Each line describes one:\n"
        f"{functions}\n"
        "To call one, answer with nothing but "
        f'{begin}{{"name": "<name>", "{key}": {{...}}}}{end}'
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
