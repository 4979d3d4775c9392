"""Bodies of POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import msgspec

from frontend.fields.logprob_fields import (
    LogprobOptions,
    checked_num_top,
    checked_prompt_top,
    named_ids,
)
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import (
    IGNORED,
    BodyReader,
    check_num_messages,
    required_model,
)
from frontend.fields.sampling_fields import resolve_sampling
from frontend.fields.thinking_fields import thinking_budget
from frontend.images.loader import ImageLoader
from frontend.images.placeholders import prompt_of
from frontend.images.source import ImageSource, image_source
from frontend.jobs.beam_fields import beam_params, with_beams
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.job import Caller, Job, Prompt
from frontend.jobs.openai_fields import (
    OpenAIFields,
    answer_options,
    check_echo,
    prompt_room,
    refuse_truncation,
)
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.message_parts import joined
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.surfaces.chat.reasoning import effort_kwargs
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.surfaces.tools.thinking_budget import with_budget
from frontend.surfaces.tools.tool_fields import ToolUse, read_tools
from frontend.surfaces.tools.tool_grammar import with_answer
from frontend.surfaces.tools.tool_messages import checked_tool_calls, declared_to, for_template
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import AnswerFormat, Surface

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


class ChatFields(OpenAIFields, omit_defaults=True):
    """The fields that have an effect, but for what was said; None means default."""

    model: str | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget_tokens: int | None = None
    custom_params: dict[str, Any] | None = None
    echo: bool | None = None


class ChatBody(ChatFields, omit_defaults=True):
    """A chat."""

    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Checked messages, and the images in them."""

    messages: list[dict[str, Any]]
    images: list[ImageSource]

    @classmethod
    def of(cls, messages: list[dict[str, Any]] | None, where: str = "messages") -> Self:
        """Raises InvalidRequest."""
        images: list[ImageSource] = []
        return cls(checked_messages(messages, images, where), images)

    @property
    def last_words(self) -> str:
        """What `echo` repeats: the last message, where it is the assistant's."""
        role, content = self.messages[-1]["role"], self.messages[-1]["content"]
        return content if role == "assistant" and isinstance(content, str) else ""


REFUSED = peer_refusals(ChatBody, {}, ignored=IGNORED)


class ChatRequests:
    """Turns bodies into jobs."""

    def __init__(
        self,
        models: ModelDirectory,
        encoder: PromptEncoder,
        images: ImageLoader,
        *,
        styles: AnswerStyles | None = None,
    ) -> None:
        self._styles = styles or AnswerStyles()
        self._models = models
        self._encoder = encoder
        self._images = images
        self._reader = BodyReader(ChatBody, REFUSED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        required_model(body.model)
        return await self.job_of(body, [Conversation.of(body.messages)], caller)

    async def job_of(
        self, body: ChatFields, conversations: Sequence[Conversation], caller: Caller
    ) -> Job:
        """All of them are asked in the same way. Raises RequestError."""
        options = answer_options(body)
        beam = beam_params(body)
        if beam is not None:
            body.n = None
        use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        wanted = thinking_budget(body)
        model = await self._models.model(required_model(body.model))
        uses_new_name = body.max_completion_tokens is not None
        if uses_new_name:
            body.max_tokens = body.max_completion_tokens
        sampling = resolve_sampling(
            body,
            model.card,
            default_max_tokens=None,
            prompt_param="messages",
            max_tokens_param="max_completion_tokens" if uses_new_name else "max_tokens",
            use_model_defaults=self._models.use_model_defaults,
            tokenizer=model.text.tokenizer,
            breakers=await dry_breakers(body, self._encoder, caller, model),
            logprobs=named_ids(body, _logprob_options(body), model.card.vocab_size),
        )
        prompts = await self._prompts(caller, model, conversations, body, use)
        tells_all = use is not None or sampling.params.grammar is None

        def answer_format(*, tells_reasoning: bool) -> AnswerFormat | None:
            return _common(
                [
                    self._answer_format(
                        model, each.messages, body, use, prompt.token_ids, tells_reasoning
                    )
                    for each, prompt in zip(conversations, prompts, strict=True)
                ]
            )

        answer = answer_format(tells_reasoning=tells_all and body.separate_reasoning is not False)
        if wanted is not None:
            thought = answer_format(tells_reasoning=tells_all)
            sampling = with_budget(sampling, wanted, thought, model)
        return Job(
            surface=Surface.CHAT,
            model=model,
            prompts=tuple(prompts),
            sampling=with_beams(with_answer(sampling, answer, use, model), beam),
            stream=bool(body.stream),
            options=options,
            answer=answer,
        )

    async def _prompts(
        self,
        caller: Caller,
        model: ServedModel,
        conversations: Sequence[Conversation],
        body: ChatFields,
        use: ToolUse | None,
    ) -> list[Prompt]:
        tools = None if use is None else self._styles.tools(model.chat_template())
        sources = [source for each in conversations for source in each.images]
        if sources:
            refuse_truncation(body)
        images = iter(await self._images.load(sources, model, caller.tenant.id))
        prompts = []
        for each in conversations:
            text = await self._rendered(caller, model, each.messages, body, use, tools)
            token_ids = await self._encode(caller, model, text, body)
            prompt = prompt_of(token_ids, list(islice(images, len(each.images))), model)
            if body.echo:
                check_echo(each.last_words, "messages")
                prompt = replace(prompt, echo=each.last_words)
            prompts.append(prompt)
            await asyncio.sleep(0)  # others have their turn between the many of one body
        return prompts

    async def prompt_ids(
        self, caller: Caller, model: ServedModel, body: ChatBody, limit: int | None = None
    ) -> list[int]:
        """What the model would read; fields that choose tokens count for nothing.

        Raises InvalidRequest, also when there is much more of it than `limit`.
        """
        sources: list[ImageSource] = []
        text = await self._prompt_text(caller, model, body, sources)
        images = await self._images.load(sources, model, caller.tenant.id)
        token_ids = await self._encode(caller, model, text, body, limit)
        return prompt_of(token_ids, images, model).token_ids

    async def prompt_text(self, caller: Caller, model: ServedModel, body: ChatBody) -> str:
        """What the template makes of a chat: images are the marks that stand for them.

        Raises InvalidRequest.
        """
        sources: list[ImageSource] = []
        text = await self._prompt_text(caller, model, body, sources)
        self._images.check(sources, model)
        return text

    async def _prompt_text(
        self, caller: Caller, model: ServedModel, body: ChatBody, sources: list[ImageSource]
    ) -> str:
        """The images in it are put into `sources`."""
        messages = checked_messages(body.messages, sources)
        use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        tools = None if use is None else self._styles.tools(model.chat_template())
        return await self._rendered(caller, model, messages, body, use, tools)

    def _answer_format(
        self,
        model: ServedModel,
        messages: list[dict[str, Any]],
        body: ChatFields,
        use: ToolUse | None,
        token_ids: list[int],
        tells_reasoning: bool,
    ) -> AnswerFormat | None:
        """None when all that the model says is content."""
        answer = self._styles.answer_format(model, use, token_ids, tells_reasoning=tells_reasoning)
        if answer is None:
            return None
        is_inside = answer.begins_in_reasoning
        if answer.reasoning is not None and body.continue_final_message:
            parser = REASONING_PARSERS.stored(answer.reasoning)
            is_inside = parser.is_open_in(messages[-1]["content"])
        return msgspec.structs.replace(
            answer,
            begins_in_reasoning=is_inside,
            hides_reasoning=body.include_reasoning is False,
        )

    async def _encode(
        self,
        caller: Caller,
        model: ServedModel,
        text: str,
        body: ChatFields,
        limit: int | None = None,
    ) -> list[int]:
        return await self._encoder.encode(
            caller,
            model,
            text,
            "messages",
            add_special_tokens=bool(body.add_special_tokens),
            max_tokens=prompt_room(body, model.card, body.max_tokens),
            limit=limit,
        )

    async def _rendered(
        self,
        caller: Caller,
        model: ServedModel,
        messages: list[dict[str, Any]],
        body: ChatFields,
        use: ToolUse | None,
        tools: ToolParser | None,
    ) -> str:
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise InvalidRequest(
                "'continue_final_message' and 'add_generation_prompt' exclude each other",
                param="continue_final_message",
            )
        template_kwargs = body.chat_template_kwargs or {}
        effort = effort_kwargs(body.reasoning_effort, model.chat_template(), "reasoning_effort")
        if reserved := {"messages", "add_generation_prompt", "tools"} & template_kwargs.keys():
            raise InvalidRequest(
                f"'chat_template_kwargs' may not hold {sorted(reserved)[0]!r}",
                param="chat_template_kwargs",
            )
        template_kwargs = {**effort, **template_kwargs}
        declared = [] if use is None else use.declared
        messages = for_template(model.chat_template(), messages, declared, tools)
        if declared:
            told = declared_to(model.chat_template(), declared)
            template_kwargs = {**template_kwargs, "tools": told}
        if body.documents:
            if not model.chat_template().knows_documents:
                raise InvalidRequest(
                    "'documents' do not work with this model's chat template: it leaves them out",
                    param="documents",
                )
            template_kwargs = {**template_kwargs, "documents": body.documents}
        return await self._encoder.render_chat(
            caller,
            model,
            messages,
            add_generation_prompt=not continues and body.add_generation_prompt is not False,
            continue_final_message=continues,
            template_kwargs=template_kwargs,
        )


def _common(answers: list[AnswerFormat | None]) -> AnswerFormat | None:
    """Of all conversations. Raises InvalidRequest."""
    if any(answer != answers[0] for answer in answers):
        raise InvalidRequest(
            "some conversations go on within reasoning, and others do not: ask for them apart",
            param="messages",
        )
    return answers[0]


def _logprob_options(body: ChatFields) -> LogprobOptions:
    """Raises InvalidRequest."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest(
            f"'top_logprobs' is {body.top_logprobs}, and 'logprobs' is not true",
            param="top_logprobs",
        )
    num_top = checked_num_top("top_logprobs", body.top_logprobs)
    return LogprobOptions(
        num_top=(num_top or 0) if body.logprobs else None,
        num_prompt_top=checked_prompt_top(body.prompt_logprobs, is_stream=bool(body.stream)),
        param="top_logprobs",
    )


def checked_messages(
    messages: list[dict[str, Any]] | None, images: list[ImageSource], where: str = "messages"
) -> list[dict[str, Any]]:
    """Messages as templates expect them: content is text. Raises InvalidRequest.

    The images in them are put into `images`.
    """
    if not messages:
        raise InvalidRequest(
            f"'{where}' is required and holds at least one message",
            param=where,
            code="missing_field" if messages is None else "invalid_value",
        )
    check_num_messages(len(messages))
    return [
        _checked_message(message, f"{where}[{i}]", images) for i, message in enumerate(messages)
    ]


def _checked_message(
    message: dict[str, Any], where: str, images: list[ImageSource]
) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(
            f"'{where}.role' is {role!r}, must be one of {', '.join(sorted(ROLES))}",
            param=f"{where}.role",
        )
    checked = {key: value for key, value in message.items() if value is not None}
    if "reasoning" in checked:  # templates know it by its other name
        checked.setdefault("reasoning_content", checked["reasoning"])
    if message.get("audio") is not None:
        raise UnsupportedParameter(f"{where}.audio")
    content = message.get("content")
    tool_calls = checked.get("tool_calls")
    if content is None and role != "assistant":
        raise InvalidRequest(f"'{where}.content' is required", param=f"{where}.content")
    if content is None:
        checked["content"] = _refusal_of(message, where)
    else:
        checked["content"] = _text_of(content, f"{where}.content", images)
    if tool_calls is not None:
        checked["tool_calls"] = checked_tool_calls(tool_calls, f"{where}.tool_calls")
    return checked


def _refusal_of(message: dict[str, Any], where: str) -> str:
    """What an assistant said in place of content: OpenAI's service keeps it in the conversation."""
    refusal = message.get("refusal") or ""
    if not isinstance(refusal, str):
        raise InvalidRequest(
            f"'{where}.refusal' must be a string", param=f"{where}.refusal", code="invalid_type"
        )
    return refusal


def _text_of(content: Any, where: str, images: list[ImageSource]) -> str:
    """A string, or the text parts of a list: one a line, where there are no images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{where}' must be a string or a list of parts",
            param=where,
            code="invalid_type",
        )
    texts: list[str | None] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "image_url":
            images.append(image_source(part, f"{where}[{i}]"))
            texts.append(None)
        elif kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif isinstance(kind, str) and kind != "text":
            raise UnsupportedParameter(
                f"{where}[{i}]",
                f"is a part of type {kind!r}: only text and image_url are supported",
            )
        else:
            raise InvalidRequest(f"'{where}[{i}]' is not a text part", param=f"{where}[{i}]")
    return joined(texts)
