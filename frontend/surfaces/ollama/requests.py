"""Bodies of /api/chat, /api/generate and /api/embed to jobs, whose answers are in Ollama's format.

`options`, `format` and `think` become fields of a chat or a completion.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec

from frontend.fields.renamed_errors import renamed_errors
from frontend.fields.request_body import BodyReader
from frontend.fields.unknown_fields import UnknownFields
from frontend.jobs.job import Caller, Job
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.chat.chat_request import Chat, ChatFields, ChatRequests
from frontend.surfaces.chat.messages import Conversation
from frontend.surfaces.chat.reasoning import Effort
from frontend.surfaces.completions.completion_request import CompletionRequests
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.ollama.body import (
    EMBED_IGNORED,
    EMBED_REFUSED,
    GENERATE_REFUSED,
    IGNORED,
    OPTIONS_IGNORED,
    OPTIONS_REFUSED,
    REFUSED,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaFields,
    OllamaGenerateBody,
    OllamaOptions,
)
from frontend.surfaces.ollama.conversation import continues, conversation_of, say
from frontend.surfaces.ollama.model_views import served_name
from frontend.surfaces.tools.tool_fields import chat_tool_use
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import Surface

_READER = BodyReader(OllamaOptions, OPTIONS_REFUSED, OPTIONS_IGNORED, prefix="options.")
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "stop",
    "presence_penalty", "frequency_penalty", "repeat_last_n",
)  # fmt: skip
# How chats and completions call it, and how Ollama does.
_NAMES = {
    **{name: f"options.{name}" for name in (*_SAME, "seed")},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
}
_NAME = re.compile(rf"(?<=')({'|'.join(_NAMES)})(?=')")
_FORMAT = re.compile(r"(?<=')response_format(\.json_schema(\.schema)?)?(?=\b)")


class OllamaChats:
    """Turns bodies of /api/chat into jobs."""

    def __init__(self, models: ModelDirectory, chats: ChatRequests) -> None:
        self._models = models
        self._chats = chats
        self._reader = BodyReader(OllamaChatBody, REFUSED, IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        conversation = conversation_of(body.messages)
        fields = ChatFields(
            **_fields_of(body, caller.unknown),
            **_thinking(body.think),
            model=served_name(self._models, body.model),
            continue_final_message=continues(conversation.messages),
        )
        chat = Chat(fields, [conversation], chat_tool_use(body.tools, None, None))
        return await chat_job(self._chats, chat, body, Surface.OLLAMA_CHAT, caller)


class OllamaCompletions:
    """Turns bodies of /api/generate into jobs: a chat of one message, or a bare prompt."""

    def __init__(
        self, models: ModelDirectory, chats: ChatRequests, completions: CompletionRequests
    ) -> None:
        self._models = models
        self._chats = chats
        self._completions = completions
        self._reader = BodyReader(OllamaGenerateBody, GENERATE_REFUSED, IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        name = served_name(self._models, body.model)
        fields = {**_fields_of(body, caller.unknown), "model": name}
        if body.raw or body.suffix:
            return await self._raw_job(body, fields, caller)
        system = [{"role": "system", "content": body.system}] if body.system else []
        conversation = Conversation(system, [])
        say(conversation, {"role": "user"}, body.prompt or "", body.images, "images")
        chat = Chat(ChatFields(**fields, **_thinking(body.think)), [conversation], None)
        return await chat_job(self._chats, chat, body, Surface.OLLAMA_GENERATE, caller)

    async def _raw_job(
        self, body: OllamaGenerateBody, fields: dict[str, Any], caller: Caller
    ) -> Job:
        with_what = "raw" if body.raw else "suffix"
        for name in ("system", "images", "think"):
            if getattr(body, name):
                raise InvalidRequest(f"'{with_what}' and '{name}' exclude each other", param=name)
        completion = {**fields, "prompt": body.prompt, "suffix": body.suffix}
        with renamed_errors(_renamed):
            job = await self._completions.job(completion, caller)
        return _named_as_in_body(job, Surface.OLLAMA_GENERATE)


class OllamaEmbeddings:
    """Turns bodies of /api/embed into jobs."""

    def __init__(self, models: ModelDirectory, embeddings: EmbeddingRequests) -> None:
        self._models = models
        self._embeddings = embeddings
        self._reader = BodyReader(OllamaEmbedBody, EMBED_REFUSED, EMBED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        fields = {
            "model": served_name(self._models, body.model),
            "input": body.input,
            "dimensions": body.dimensions,
            "truncate_prompt_tokens": None if body.truncate is False else -1,
        }
        job = await self._embeddings.job(fields, caller)
        return replace(job, surface=Surface.OLLAMA_EMBED)


async def chat_job(
    chats: ChatRequests, chat: Chat, body: OllamaFields, surface: Surface, caller: Caller
) -> Job:
    """The job of a chat, with errors in Ollama's names. Raises RequestError."""
    with renamed_errors(lambda text: _renamed(text, surface)):
        job = await chats.job_of(chat, caller)
    if body.think and (job.answer is None or job.answer.reasoning is None):
        raise UnsupportedParameter(
            "think",
            f"is {body.think!r}, and this answer has no reasoning: the model does not think "
            "aloud, or 'format' is kept from its first token on",
        )
    return _named_as_in_body(job, surface)


def _named_as_in_body(job: Job, surface: Surface) -> Job:
    """What is found wrong later is named as it stands in Ollama's body, too."""
    sampling = msgspec.structs.replace(
        job.sampling,
        max_tokens_param=_NAMES["max_tokens"],
        prompt_param="messages" if surface is Surface.OLLAMA_CHAT else "prompt",
        grammar_param="format",
    )
    return replace(job, surface=surface, sampling=sampling)


def _renamed(text: str, surface: Surface | None = None) -> str:
    """What is complained of is named as it stands in Ollama's body."""
    text = _FORMAT.sub("format", _NAME.sub(lambda found: _NAMES[found[1]], text))
    if surface is Surface.OLLAMA_GENERATE:
        text = re.sub(r"(?<=')messages(?=')", "prompt", text)
    return text


def _fields_of(body: OllamaFields, unknown: UnknownFields) -> dict[str, Any]:
    """What both kinds of bodies take. Raises InvalidRequest."""
    return {**_sampling(body.options or {}, unknown), **_format(body.format), "stream": body.stream}


def _thinking(think: bool | Effort | None) -> dict[str, Any]:
    """Fields of a chat."""
    match think:
        case True:
            return {"chat_template_kwargs": {"enable_thinking": True}}
        case False:
            kwargs = {"enable_thinking": False}
            return {"chat_template_kwargs": kwargs, "include_reasoning": False}
        case None:
            return {}
        case _:
            return {"reasoning_effort": think}


def _sampling(given: dict[str, Any], unknown: UnknownFields) -> dict[str, Any]:
    options = _READER.read(given, unknown)
    fields = {name: getattr(options, name) for name in _SAME}
    if options.num_predict is not None and options.num_predict >= 0:
        fields["max_tokens"] = options.num_predict  # below 0: the rest of the context
    if options.seed is not None and options.seed >= 0:
        fields["seed"] = options.seed  # below 0: any
    fields["repetition_penalty"] = options.repeat_penalty
    return fields


def _format(wanted: str | dict[str, Any] | None) -> dict[str, Any]:
    if not isinstance(wanted, dict):
        return {"response_format": {"type": "json_object"}} if wanted else {}
    schema = {"name": "answer", "schema": wanted}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
