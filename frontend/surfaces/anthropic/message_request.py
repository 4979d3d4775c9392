"""Bodies of /v1/messages to jobs: a chat's, whose answer is told in Anthropic's words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from frontend.fields.field_ranges import Range
from frontend.fields.renamed_errors import renamed_errors
from frontend.fields.request_body import BodyReader, convert, required_model
from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.anthropic.body import IGNORED, REFUSED, MessageBody
from frontend.surfaces.anthropic.conversation import chat_messages, continues
from frontend.surfaces.chat.chat_request import ChatBody, ChatRequests
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import Surface

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_CLIENT_KINDS = (None, "custom")
_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
# How a chat calls it, and how we do.
_NAMES = (
    (re.compile(r"\.function\.parameters\b"), ".input_schema"),
    (re.compile(r"\b(tools\[\d+\]|tool_choice)\.function\b"), r"\1"),
    (re.compile(r"(?<=')stop\b"), "stop_sequences"),
    (re.compile(r"\bresponse_format(\.json_schema)?\b"), "output_config.format"),
    (re.compile(r"(?<=')reasoning_effort\b"), "output_config.effort"),
    (re.compile(r"(?<=')thinking_token_budget\b"), "thinking.budget_tokens"),
)
_PART = re.compile(r"(?<=')messages\[(\d+)\]\.content\[(\d+)\]")


class MessageRequests:
    """Turns bodies into jobs."""

    def __init__(self, models: ModelDirectory, chats: ChatRequests) -> None:
        self._models = models
        self._chats = chats
        self._reader = BodyReader(MessageBody, REFUSED, IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        required_model(body.model)
        if body.max_tokens is None:
            raise InvalidRequest(
                "'max_tokens' is required", param="max_tokens", code="missing_field"
            )
        chat = _chat(body)
        with renamed_errors(lambda text: _renamed(text, chat)):
            job = await self._chats.job(chat, caller)
        _check_can_think(body, job)
        return replace(job, surface=Surface.MESSAGES)

    async def count(self, raw: dict[str, Any], caller: Caller) -> int:
        """Tokens of the prompt. Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        model = await self._models.model(required_model(body.model))
        chat = _chat(body)
        with renamed_errors(lambda text: _renamed(text, chat)):
            return len(await self._chats.prompt_ids(caller, model, convert(chat, ChatBody)))


def _chat(body: MessageBody) -> dict[str, Any]:
    """The body of a chat that asks for the same. Raises InvalidRequest."""
    messages = chat_messages(body.system, body.messages)
    return {
        **{name: getattr(body, name) for name in _SAME},
        "messages": messages,
        "continue_final_message": continues(messages),
        "stop": body.stop_sequences,
        "tools": _tools(body.tools),
        **_tool_choice(body.tool_choice),
        **_thinking(body.thinking),
        **_output(body.output_config),
    }


def _thinking(thinking: Any) -> dict[str, Any]:
    """Fields of the chat. Raises InvalidRequest."""
    if thinking is None:
        return {}
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    fields: dict[str, Any] = {}
    match kind:
        case "enabled":
            fields["chat_template_kwargs"] = {"enable_thinking": True}
        case "disabled":
            fields["chat_template_kwargs"] = {"enable_thinking": False}
            fields["include_reasoning"] = False
        case "adaptive":
            pass
        case str():
            raise UnsupportedParameter(
                "thinking.type",
                f"is {kind[:100]!r}: only enabled, disabled and adaptive are supported",
            )
        case _:
            raise InvalidRequest("'thinking.type' is required", param="thinking.type")
    if kind != "disabled" and thinking.get("budget_tokens") is not None:
        fields["thinking_token_budget"] = _budget(thinking["budget_tokens"])
    if thinking.get("display") == "omitted":
        fields["include_reasoning"] = False
    return fields


def _budget(value: Any) -> int:
    """Raises InvalidRequest."""
    param = "thinking.budget_tokens"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"'{param}' must be an integer", param=param, code="invalid_type")
    Range(low=1).check(param, value)
    return value


def _check_can_think(body: MessageBody, job: Job) -> None:
    """Raises UnsupportedParameter."""
    is_asked = isinstance(body.thinking, dict) and body.thinking.get("type") == "enabled"
    if is_asked and (job.answer is None or job.answer.reasoning is None):
        raise UnsupportedParameter(
            "thinking.type",
            "is 'enabled', and this answer has no reasoning: the model does not think aloud, or "
            "'output_config.format' is kept from its first token on",
        )


def _output(config: Any) -> dict[str, Any]:
    """Fields of the chat. Raises InvalidRequest."""
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InvalidRequest(
            "'output_config' must be an object", param="output_config", code="invalid_type"
        )
    effort = {"reasoning_effort": config.get("effort")}
    wanted = config.get("format")
    if wanted is None:
        return effort
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind != "json_schema":
        raise InvalidRequest(
            f"'output_config.format.type' is {json.dumps(kind)[:100]}, must be json_schema",
            param="output_config.format.type",
        )
    schema = {"name": "output", "schema": wanted.get("schema"), "strict": True}
    return effort | {"response_format": {"type": "json_schema", "json_schema": schema}}


def _renamed(text: str, chat: dict[str, Any]) -> str:
    for chats, ours in _NAMES:
        text = chats.sub(ours, text)

    def of_block(found: re.Match[str]) -> str:
        part = chat["messages"][int(found[1])]["content"][int(found[2])]
        return str(part["where"])

    return _PART.sub(of_block, text)


def _tools(tools: Any) -> list[dict[str, Any]] | None:
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


def _tool_choice(choice: Any) -> dict[str, Any]:
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
