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
from frontend.fields.request_body import IGNORED, BodyReader, required_model
from frontend.fields.sampling_fields import resolve_sampling
from frontend.fields.thinking_fields import thinking_budget
from frontend.images.loader import ImageLoader
from frontend.images.placeholders import prompt_of, with_stamps
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
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.surfaces.chat.messages import Conversation, MediaFields, VideoFields
from frontend.surfaces.chat.reasoning import Effort, effort_kwargs
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.surfaces.tools.thinking_budget import with_budget
from frontend.surfaces.tools.tool_fields import ToolUse, chat_tool_use
from frontend.surfaces.tools.tool_grammar import with_answer
from frontend.surfaces.tools.tool_messages import declared_to, for_template
from frontend.surfaces.tools.tool_shapes import ChatToolChoice, ChatTools
from shared.errors import InvalidRequest
from shared.protocol.reply import AnswerFormat, Surface


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
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget_tokens: int | None = None
    custom_params: dict[str, Any] | None = None
    echo: bool | None = None


class ChatBody(ChatFields, omit_defaults=True):
    """A chat."""

    messages: list[dict[str, Any]] | None = None
    mm_processor_kwargs: VideoFields | None = None
    media_io_kwargs: MediaFields | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """What is asked, of one conversation or of many, and with which tools."""

    fields: ChatFields
    conversations: Sequence[Conversation]
    use: ToolUse | None

    @classmethod
    def of(cls, body: ChatBody) -> Self:
        """Raises InvalidRequest."""
        conversation = Conversation.of(body.messages)
        of_media = None if body.media_io_kwargs is None else body.media_io_kwargs.video
        for fields in (body.mm_processor_kwargs, of_media):
            conversation = conversation if fields is None else conversation.with_videos(fields)
        return cls.of_many(body, [conversation])

    @classmethod
    def of_many(cls, fields: ChatFields, conversations: Sequence[Conversation]) -> Self:
        """Raises InvalidRequest."""
        use = chat_tool_use(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
        return cls(fields, conversations, use)


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
        return await self.job_of(Chat.of(body), caller)

    async def job_of(self, chat: Chat, caller: Caller) -> Job:
        """Raises RequestError."""
        body, use = chat.fields, chat.use
        options = answer_options(body)
        beam = beam_params(body)
        if beam is not None:
            body.n = None
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
        prompts = await self._prompts(caller, model, chat)
        may_separate = use is not None or sampling.params.grammar is None

        def answer_format(*, separates_reasoning: bool) -> AnswerFormat | None:
            return _common(
                [
                    self._answer_format(
                        model, each.messages, body, use, prompt.token_ids, separates_reasoning
                    )
                    for each, prompt in zip(chat.conversations, prompts, strict=True)
                ]
            )

        answer = answer_format(
            separates_reasoning=may_separate and body.separate_reasoning is not False
        )
        if wanted is not None:
            thought = answer_format(separates_reasoning=may_separate)
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

    async def _prompts(self, caller: Caller, model: ServedModel, chat: Chat) -> list[Prompt]:
        body = chat.fields
        sources = [source for each in chat.conversations for source in each.images]
        if sources:
            refuse_truncation(body)
        loaded = iter(await self._images.load(sources, model, caller.tenant.id))
        prompts = []
        for each in chat.conversations:
            text = await self._rendered(caller, model, each.messages, chat)
            images = list(islice(loaded, len(each.images)))
            text = with_stamps(text, images, model)
            token_ids = await self._encode(caller, model, text, body)
            prompt = prompt_of(token_ids, images, model)
            if body.echo:
                check_echo(each.last_words, "messages")
                prompt = replace(prompt, echo=each.last_words)
            prompts.append(prompt)
            if len(prompts) < len(chat.conversations):
                await asyncio.sleep(0)  # others have their turn between the many of one body
        return prompts

    async def prompt_ids(
        self, caller: Caller, model: ServedModel, chat: Chat, limit: int | None = None
    ) -> list[int]:
        """What the model would read of its one conversation; fields that choose tokens count for
        nothing.

        Raises InvalidRequest, also when there is much more of it than `limit`.
        """
        (conversation,) = chat.conversations
        text = await self._rendered(caller, model, conversation.messages, chat)
        images = await self._images.load(conversation.images, model, caller.tenant.id)
        text = with_stamps(text, images, model)
        token_ids = await self._encode(caller, model, text, chat.fields, limit)
        return prompt_of(token_ids, images, model).token_ids

    async def prompt_text(self, caller: Caller, model: ServedModel, chat: Chat) -> str:
        """What the template makes of its one conversation: images are the marks that stand for
        them.

        Raises InvalidRequest.
        """
        (conversation,) = chat.conversations
        text = await self._rendered(caller, model, conversation.messages, chat)
        self._images.check(conversation.images, model)
        return text

    def _answer_format(
        self,
        model: ServedModel,
        messages: list[dict[str, Any]],
        body: ChatFields,
        use: ToolUse | None,
        token_ids: list[int],
        separates_reasoning: bool,
    ) -> AnswerFormat | None:
        """None when all that the model says is content."""
        answer = self._styles.answer_format(
            model, use, token_ids, separates_reasoning=separates_reasoning
        )
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
        self, caller: Caller, model: ServedModel, messages: list[dict[str, Any]], chat: Chat
    ) -> str:
        body, use = chat.fields, chat.use
        tools = None if use is None else self._styles.tools(model.chat_template())
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise InvalidRequest(
                "'continue_final_message' and 'add_generation_prompt' exclude each other",
                param="continue_final_message",
            )
        template_kwargs = body.chat_template_kwargs or {}
        effort = effort_kwargs(body.reasoning_effort, model.chat_template())
        if reserved := {"messages", "add_generation_prompt", "tools"} & template_kwargs.keys():
            raise InvalidRequest(
                f"'chat_template_kwargs' may not hold {sorted(reserved)[0]!r}",
                param="chat_template_kwargs",
            )
        template_kwargs = {**effort, **template_kwargs}
        declared = [] if use is None else use.declared
        messages = for_template(model.chat_template(), messages, declared, tools)
        if declared:
            described = declared_to(model.chat_template(), declared)
            template_kwargs = {**template_kwargs, "tools": described}
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
    """The one that all conversations have. Raises InvalidRequest."""
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
