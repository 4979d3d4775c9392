"""Bodies of POST /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Any

from frontend.job import Job, Prompt
from frontend.logprob_fields import LogprobWish, checked_num_top, checked_prompt_top
from frontend.model_directory import ModelDirectory, ServedModel
from frontend.openai_fields import OpenAIFields, answer_wish, prompt_room
from frontend.prompt_encoder import PromptEncoder
from frontend.request_body import (
    IGNORED,
    UNSUPPORTED,
    UnknownFields,
    always,
    convert,
    non_empty,
    refuse_unsupported,
)
from frontend.sampling_fields import resolve_sampling
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol import Surface

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


class ChatBody(OpenAIFields, omit_defaults=True):
    """The fields that have an effect; None means default."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None


REFUSED = {
    **UNSUPPORTED,
    "tools": non_empty,
    "tool_choice": lambda value: value not in ("none", "auto"),
    "functions": non_empty,
    "function_call": lambda value: value not in ("none", "auto"),
    "modalities": lambda value: value != ["text"],
    "audio": always,
    "web_search_options": always,
    "chat_template": always,
    "best_of": lambda value: value != 1,
    "echo": non_empty,
    "suffix": non_empty,
}
_KNOWN = frozenset(ChatBody.__struct_fields__) | REFUSED.keys() | IGNORED


class ChatRequests:
    """Turns bodies into jobs."""

    def __init__(
        self, models: ModelDirectory, encoder: PromptEncoder, *, use_model_defaults: bool
    ) -> None:
        self._models = models
        self._encoder = encoder
        self._use_model_defaults = use_model_defaults
        self._unknown = UnknownFields()

    async def job(self, raw: dict[str, Any]) -> Job:
        """Raises RequestError."""
        refuse_unsupported(raw, REFUSED)
        self._unknown.note(raw, _KNOWN)
        body = convert(raw, ChatBody)
        if not body.model:
            raise InvalidRequest("'model' is required", param="model", code="missing_field")
        messages = checked_messages(body.messages)
        wish = answer_wish(body)
        model = await self._models.model(body.model)
        uses_new_name = body.max_completion_tokens is not None
        if uses_new_name:
            body.max_tokens = body.max_completion_tokens
        sampling = resolve_sampling(
            body,
            model.card,
            default_max_tokens=None,
            prompt_param="messages",
            max_tokens_param="max_completion_tokens" if uses_new_name else "max_tokens",
            use_model_defaults=self._use_model_defaults,
            tokenizer=model.text.tokenizer,
            logprobs=_logprob_wish(body),
        )
        token_ids = await self._encode(model, messages, body)
        return Job(
            surface=Surface.CHAT,
            model=model,
            prompts=(Prompt(token_ids),),
            sampling=sampling,
            stream=bool(body.stream),
            wish=wish,
        )

    async def _encode(
        self, model: ServedModel, messages: list[dict[str, Any]], body: ChatBody
    ) -> list[int]:
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise InvalidRequest(
                "'continue_final_message' and 'add_generation_prompt' exclude each other",
                param="continue_final_message",
            )
        template_kwargs = body.chat_template_kwargs or {}
        if reserved := {"messages", "add_generation_prompt"} & template_kwargs.keys():
            raise InvalidRequest(
                f"'chat_template_kwargs' may not hold {sorted(reserved)[0]!r}",
                param="chat_template_kwargs",
            )
        if body.documents:
            if not model.chat_template().knows_documents:
                raise InvalidRequest(
                    "'documents' do not work with this model's chat template: it leaves them out",
                    param="documents",
                )
            template_kwargs = {**template_kwargs, "documents": body.documents}
        return await self._encoder.encode_chat(
            model,
            with_known_roles(model, messages),
            add_generation_prompt=not continues and body.add_generation_prompt is not False,
            continue_final_message=continues,
            template_kwargs=template_kwargs,
            add_special_tokens=bool(body.add_special_tokens),
            max_tokens=prompt_room(body, model.card, body.max_tokens),
        )


def with_known_roles(model: ServedModel, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developers speak as the system where the model's template does not know them."""
    if model.chat_template().knows_developer_role:
        return messages
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]


def _logprob_wish(body: ChatBody) -> LogprobWish:
    """Raises InvalidRequest."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest(
            f"'top_logprobs' is {body.top_logprobs}, and 'logprobs' is not true",
            param="top_logprobs",
        )
    num_top = checked_num_top("top_logprobs", body.top_logprobs)
    return LogprobWish(
        num_top=(num_top or 0) if body.logprobs else None,
        num_prompt_top=checked_prompt_top(body.prompt_logprobs, is_stream=bool(body.stream)),
        param="top_logprobs",
    )


def checked_messages(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Messages as templates expect them: content is text. Raises InvalidRequest."""
    if not messages:
        raise InvalidRequest(
            "'messages' is required and holds at least one message",
            param="messages",
            code="missing_field" if messages is None else "invalid_value",
        )
    return [_checked_message(message, i) for i, message in enumerate(messages)]


def _checked_message(message: dict[str, Any], idx: int) -> dict[str, Any]:
    where = f"messages[{idx}]"
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"'{where}.role' is {role!r}, must be one of {', '.join(sorted(ROLES))}",
            param=f"{where}.role",
        )
    checked = {key: value for key, value in message.items() if value is not None}
    if message.get("audio") is not None:
        raise UnsupportedParameter(f"{where}.audio")
    content = message.get("content")
    tool_calls = checked.get("tool_calls")
    if content is None and role != "assistant":
        raise InvalidRequest(f"'{where}.content' is required", param=f"{where}.content")
    checked["content"] = "" if content is None else _text_of(content, f"{where}.content")
    if tool_calls is not None:
        checked["tool_calls"] = _checked_tool_calls(tool_calls, f"{where}.tool_calls")
    return checked


def _text_of(content: Any, where: str) -> str:
    """A string, or the text parts of a list, one a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{where}' must be a string or a list of parts",
            param=where,
            code="invalid_type",
        )
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif isinstance(kind, str) and kind != "text":
            raise UnsupportedParameter(
                f"{where}[{i}]", f"is a part of type {kind!r}: only text is supported"
            )
        else:
            raise InvalidRequest(f"'{where}[{i}]' is not a text part", param=f"{where}[{i}]")
    return "\n".join(texts)


def _checked_tool_calls(tool_calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls of an earlier turn: templates want the arguments as an object, OpenAI sends JSON."""
    if not isinstance(tool_calls, list) or not all(isinstance(call, dict) for call in tool_calls):
        raise InvalidRequest(f"'{where}' must be a list of objects", param=where)
    return [_with_parsed_arguments(call) for call in tool_calls]


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
