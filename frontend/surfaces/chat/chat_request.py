"""Bodies of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.logprob_fields import LogprobOptions, checked_num_top, checked_prompt_top
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import (
    IGNORED,
    BodyReader,
    check_num_messages,
    required_model,
)
from frontend.fields.sampling_fields import Sampling, resolve_sampling
from frontend.images.loader import ImageLoader
from frontend.images.placeholders import expanded, prompt_of
from frontend.images.source import ImageSource, image_source
from frontend.jobs.beam_fields import beam_params, with_beams
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.job import Caller, Job
from frontend.jobs.openai_fields import (
    OpenAIFields,
    answer_options,
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
from frontend.surfaces.tools.tool_fields import ToolUse, read_tools
from frontend.surfaces.tools.tool_grammar import with_answer
from frontend.surfaces.tools.tool_messages import checked_tool_calls, for_template
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import AnswerFormat, Surface

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
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_effort: str | None = None


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
        name = required_model(body.model)
        sources: list[ImageSource] = []
        messages = checked_messages(body.messages, sources)
        options = answer_options(body)
        beam = beam_params(body)
        if beam is not None:
            body.n = None
        use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        model = await self._models.model(name)
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
            logprobs=_logprob_options(body),
        )
        tools = None if use is None else self._styles.tools(model.chat_template())
        if sources:
            refuse_truncation(body)
        images = await self._images.load(sources, model, caller.tenant.id)
        text = await self._rendered(caller, model, messages, body, use, tools)
        token_ids = await self._encode(caller, model, text, body)
        prompt = prompt_of(token_ids, images, model)
        answer = self._answer_format(model, messages, body, use, sampling, prompt.token_ids)
        return Job(
            surface=Surface.CHAT,
            model=model,
            prompts=(prompt,),
            sampling=with_beams(with_answer(sampling, answer, use, model), beam),
            stream=bool(body.stream),
            options=options,
            answer=answer,
        )

    async def prompt_ids(
        self, caller: Caller, model: ServedModel, body: ChatBody, limit: int | None = None
    ) -> list[int]:
        """What the model would read; fields that choose tokens count for nothing.

        Raises InvalidRequest, also when there is much more of it than `limit`.
        """
        sources: list[ImageSource] = []
        text = await self._prompt_text(caller, model, body, sources)
        vision = self._images.vision(sources, model)
        token_ids = await self._encode(caller, model, text, body, limit)
        return token_ids if vision is None else expanded(token_ids, len(sources), vision)

    async def prompt_text(self, caller: Caller, model: ServedModel, body: ChatBody) -> str:
        """What the template makes of a chat: images are the marks that stand for them.

        Raises InvalidRequest.
        """
        sources: list[ImageSource] = []
        text = await self._prompt_text(caller, model, body, sources)
        self._images.vision(sources, model)
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
        body: ChatBody,
        use: ToolUse | None,
        sampling: Sampling,
        token_ids: list[int],
    ) -> AnswerFormat | None:
        """None when all that the model says is content."""
        has_own_grammar = use is None and sampling.params.grammar is not None
        answer = self._styles.answer_format(
            model,
            use,
            token_ids,
            tells_reasoning=body.separate_reasoning is not False and not has_own_grammar,
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
        body: ChatBody,
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
        body: ChatBody,
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
            template_kwargs = {**template_kwargs, "tools": declared}
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


def _logprob_options(body: ChatBody) -> LogprobOptions:
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
    messages: list[dict[str, Any]] | None, images: list[ImageSource]
) -> list[dict[str, Any]]:
    """Messages as templates expect them: content is text. Raises InvalidRequest.

    The images in them are put into `images`.
    """
    if not messages:
        raise InvalidRequest(
            "'messages' is required and holds at least one message",
            param="messages",
            code="missing_field" if messages is None else "invalid_value",
        )
    check_num_messages(len(messages))
    return [_checked_message(message, i, images) for i, message in enumerate(messages)]


def _checked_message(
    message: dict[str, Any], idx: int, images: list[ImageSource]
) -> dict[str, Any]:
    where = f"messages[{idx}]"
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
    checked["content"] = "" if content is None else _text_of(content, f"{where}.content", images)
    if tool_calls is not None:
        checked["tool_calls"] = checked_tool_calls(tool_calls, f"{where}.tool_calls")
    return checked


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
