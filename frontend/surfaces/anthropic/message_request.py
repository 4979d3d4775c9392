"""Bodies of /v1/messages to jobs: a chat's, whose answer is told in Anthropic's words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from frontend.fields.field_ranges import Range
from frontend.fields.renamed_errors import renamed_errors
from frontend.fields.request_body import BodyReader, required_model
from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.anthropic.body import (
    IGNORED,
    REFUSED,
    MessageBody,
    OutputConfig,
    OutputFormat,
    Thinking,
)
from frontend.surfaces.anthropic.conversation import continues, conversation_of
from frontend.surfaces.chat.chat_request import Chat, ChatFields, ChatRequests
from frontend.surfaces.tools.tool_fields import message_tool_use
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import Surface

_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
# How a chat calls it, and how we do.
_NAMES = (
    (re.compile(r"(?<=')stop\b"), "stop_sequences"),
    (re.compile(r"\bresponse_format(\.json_schema)?\b"), "output_config.format"),
    (re.compile(r"(?<=')thinking_token_budget\b"), "thinking.budget_tokens"),
)


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
        with renamed_errors(_renamed):
            job = await self._chats.job_of(chat, caller)
        _check_can_think(body, job)
        return replace(job, surface=Surface.MESSAGES)

    async def count(self, raw: dict[str, Any], caller: Caller) -> int:
        """Tokens of the prompt. Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        model = await self._models.model(required_model(body.model))
        chat = _chat(body)
        with renamed_errors(_renamed):
            return len(await self._chats.prompt_ids(caller, model, chat))


def _chat(body: MessageBody) -> Chat:
    """One that asks for the same. Raises InvalidRequest."""
    conversation = conversation_of(body.system, body.messages)
    config = body.output_config or OutputConfig()
    fields = ChatFields(
        **{name: getattr(body, name) for name in _SAME},
        continue_final_message=continues(conversation.messages),
        stop=body.stop_sequences,
        reasoning_effort=config.effort,
        response_format=None if config.format is None else _format(config.format),
        **({} if body.thinking is None else _thinking(body.thinking)),
    )
    return Chat(fields, [conversation], message_tool_use(body.tools, body.tool_choice))


def _thinking(thinking: Thinking) -> dict[str, Any]:
    """Fields of the chat. Raises InvalidRequest."""
    fields: dict[str, Any] = {}
    if thinking.type != "adaptive":
        fields["chat_template_kwargs"] = {"enable_thinking": thinking.type == "enabled"}
    if thinking.type == "disabled" or thinking.display == "omitted":
        fields["include_reasoning"] = False
    if thinking.type != "disabled" and thinking.budget_tokens is not None:
        Range(low=1).check("thinking.budget_tokens", thinking.budget_tokens)
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _format(wanted: OutputFormat) -> dict[str, Any]:
    schema = {"name": "output", "schema": wanted.schema, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _check_can_think(body: MessageBody, job: Job) -> None:
    """Raises UnsupportedParameter."""
    is_asked = body.thinking is not None and body.thinking.type == "enabled"
    if is_asked and (job.answer is None or job.answer.reasoning is None):
        raise UnsupportedParameter(
            "thinking.type",
            "is 'enabled', and this answer has no reasoning: the model does not think aloud, or "
            "'output_config.format' is kept from its first token on",
        )


def _renamed(text: str) -> str:
    for chats, ours in _NAMES:
        text = chats.sub(ours, text)
    return text
