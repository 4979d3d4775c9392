"""Bodies of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.fields.field_ranges import RANGES
from frontend.fields.grammar_fields import GrammarFields, WantedGrammar, resolve_text_format
from frontend.fields.logprob_fields import LogprobOptions
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import (
    IGNORED,
    OF_OPENAI,
    BodyReader,
    Refused,
    always,
    non_empty,
    required_model,
)
from frontend.fields.sampling_fields import Sampling, SamplingFields, resolve_sampling
from frontend.fields.thinking_fields import thinking_budget
from frontend.images.loader import ImageLoader, Loaded
from frontend.images.placeholders import prompt_of, with_stamps
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.job import Caller, Job, Prompt, ResponseDraft
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.jobs.stored_response import Conversation, ResponseParams
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.chat.reasoning import Effort, effort_kwargs
from frontend.surfaces.responses.conversation import conversation_of, images_of, messages_of
from frontend.surfaces.responses.conversation_store import ConversationStore
from frontend.surfaces.responses.input_items import check_calls, input_items
from frontend.surfaces.responses.store import ResponseStore
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.surfaces.tools.thinking_budget import with_budget
from frontend.surfaces.tools.tool_fields import ToolUse, response_tool_use
from frontend.surfaces.tools.tool_grammar import with_answer
from frontend.surfaces.tools.tool_messages import declared_to, for_template
from frontend.surfaces.tools.tool_shapes import ResponseTool, ResponseToolChoice, ResponseTools
from shared.errors import ConversationLocked, InvalidRequest, UnsupportedParameter
from shared.protocol.reply import Surface

MAX_METADATA = 16  # pairs
MAX_METADATA_KEY = 64  # characters
MAX_METADATA_VALUE = 512
MAX_CHAIN_ITEMS = 4096
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    # Of items that no response here has:
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)


class TextField(msgspec.Struct):
    """`text`: what the output is."""

    format: Any = None
    verbosity: str | None = None


class ReasoningField(msgspec.Struct):
    """`reasoning`: how much of it; a summary is the reasoning itself."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its older name


class ConversationName(msgspec.Struct):
    """A conversation in an object of its own."""

    id: str


class ResponseBody(SamplingFields, omit_defaults=True):
    """The fields that have an effect; None means default."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    text: TextField | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    stream: bool | None = None
    background: bool | None = None
    reasoning: ReasoningField | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    thinking_token_budget: int | None = None


_OWN: Refused = {
    **OF_OPENAI,
    **dict.fromkeys(GrammarFields.__struct_fields__, always),  # `text.format` says it here
    "n": lambda value: value != 1,
    "max_tokens": always,
    "max_completion_tokens": always,
    "messages": always,
    "prompt_logprobs": always,
    "logprobs": non_empty,
    "prompt": always,
    "context_management": non_empty,
}
IGNORED_HERE = (IGNORED - {"metadata", "store"}) | {"stream_options", "prompt_cache_options"}
REFUSED = peer_refusals(ResponseBody, _OWN, ignored=IGNORED_HERE)


class ResponseRequests:
    """Turns bodies into jobs."""

    def __init__(
        self,
        models: ModelDirectory,
        encoder: PromptEncoder,
        store: ResponseStore,
        conversations: ConversationStore,
        images: ImageLoader,
        *,
        styles: AnswerStyles | None = None,
    ) -> None:
        self._styles = styles or AnswerStyles()
        self._models = models
        self._encoder = encoder
        self._store = store
        self._conversations = conversations
        self._images = images
        self._reader = BodyReader(ResponseBody, REFUSED, IGNORED_HERE)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body, items, use = self._read(raw, caller)
        grammar = None if body.text is None else resolve_text_format(body.text.format)
        model = await self._models.model(required_model(body.model))
        body.max_tokens = body.max_output_tokens
        sampling = resolve_sampling(
            body,
            model.card,
            default_max_tokens=None,
            prompt_param="input",
            max_tokens_param="max_output_tokens",
            use_model_defaults=self._models.use_model_defaults,
            tokenizer=model.text.tokenizer,
            breakers=await dry_breakers(body, self._encoder, caller, model),
            logprobs=LogprobOptions(num_top=_num_top(body), param="top_logprobs"),
            text_format=grammar,
        )
        conversation = await self._conversation(body.conversation, caller)
        items, prompt = await self._prompt(body, items, conversation, use, model, caller)
        answer = self._styles.answer_format(
            model, use, prompt.token_ids, separates_reasoning=use is not None or grammar is None
        )
        sampling = with_budget(sampling, thinking_budget(body), answer, model)
        return Job(
            surface=Surface.RESPONSES,
            model=model,
            prompts=(prompt,),
            sampling=with_answer(sampling, answer, use, model),
            stream=bool(body.stream),
            answer=answer,
            response=ResponseDraft(_params(body, sampling, grammar), items, conversation),
        )

    async def count(self, raw: dict[str, Any], caller: Caller) -> int:
        """Tokens of the prompt, whatever chooses those behind it. Raises RequestError."""
        body, items, use = self._read(raw, caller)
        model = await self._models.model(required_model(body.model))
        conversation = await self._conversation(body.conversation, caller)
        _, prompt = await self._prompt(body, items, conversation, use, model, caller)
        return len(prompt.token_ids)

    def _read(
        self, raw: dict[str, Any], caller: Caller
    ) -> tuple[ResponseBody, list[dict[str, Any]], ToolUse | None]:
        """The body, its input, and its tools. Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        required_model(body.model)
        _check(body, caller)
        use = response_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
        return body, input_items(body.input), use

    async def _prompt(
        self,
        body: ResponseBody,
        items: list[dict[str, Any]],
        conversation: Conversation | None,
        use: ToolUse | None,
        model: ServedModel,
        caller: Caller,
    ) -> tuple[list[dict[str, Any]], Prompt]:
        """The input behind what was said before, and what the model reads of both."""
        earlier, source = await self._earlier(body.previous_response_id, conversation, caller)
        items = earlier + items
        check_calls(items, len(earlier))
        sources = images_of(items, len(earlier), source)
        images = await self._images.load(sources, model, caller.tenant.id)
        token_ids = await self._encode(
            caller, model, messages_of(items, body.instructions), use, body.reasoning, images
        )
        return items, prompt_of(token_ids, images, model, "input")

    async def _encode(
        self,
        caller: Caller,
        model: ServedModel,
        messages: list[dict[str, Any]],
        use: ToolUse | None,
        reasoning: ReasoningField | None,
        images: Sequence[Loaded],
    ) -> list[int]:
        template = model.chat_template()
        effort = None if reasoning is None else reasoning.effort
        template_kwargs = effort_kwargs(effort, template)
        declared = [] if use is None else use.declared
        style = None if use is None else self._styles.tools(template)
        if declared:
            template_kwargs = {**template_kwargs, "tools": declared_to(template, declared)}
        text = await self._encoder.render_chat(
            caller,
            model,
            for_template(template, messages, declared, style),
            add_generation_prompt=True,
            continue_final_message=False,
            template_kwargs=template_kwargs,
        )
        text = with_stamps(text, images, model, "input")
        return await self._encoder.encode(caller, model, text, "input", add_special_tokens=False)

    async def _conversation(
        self, name: str | ConversationName | None, caller: Caller
    ) -> Conversation | None:
        if name is None:
            return None
        conversation_id = name if isinstance(name, str) else name.id
        found = await self._conversations.get(conversation_id, caller.owner)
        if found.is_running:
            raise ConversationLocked(found.id)
        return found

    async def _earlier(
        self, response_id: str | None, conversation: Conversation | None, caller: Caller
    ) -> tuple[list[dict[str, Any]], str]:
        """The items before the input, and the field that they are of."""
        items: list[dict[str, Any]] = []
        source = "previous_response_id"
        if conversation is not None:
            items, source = conversation.items, "conversation"
        elif response_id is not None:
            items = conversation_of(await self._store.get(response_id, caller.owner))
        if len(items) > MAX_CHAIN_ITEMS:
            raise InvalidRequest(
                f"'{source}' names a conversation of {len(items)} items, at most {MAX_CHAIN_ITEMS}",
                param=source,
            )
        return items, source


def _check(body: ResponseBody, caller: Caller) -> None:
    """What is not about the input. Raises InvalidRequest."""
    RANGES["top_logprobs"].check("top_logprobs", body.top_logprobs)
    for name in body.include or ():
        if name not in INCLUDABLE:
            raise InvalidRequest(
                f"'include' holds {name[:100]!r}, must be of {', '.join(INCLUDABLE)}",
                param="include",
            )
    if body.store is False and body.background:
        raise InvalidRequest(
            "'store' is false, and 'background' is true: nobody could read it", param="store"
        )
    if body.store is False and caller.idempotency_key:
        raise UnsupportedParameter("store", "is false, and an Idempotency-Key needs it kept")
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidRequest(
            "give 'conversation' or 'previous_response_id', not both", param="conversation"
        )
    if body.conversation is not None and body.store is False:
        raise InvalidRequest(
            "'store' is false, and 'conversation' keeps what is said", param="store"
        )
    check_metadata(body.metadata)


def check_metadata(given: dict[str, str] | None) -> None:
    """Raises InvalidRequest."""
    metadata = given or {}
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(
            f"'metadata' has {len(metadata)} pairs, at most {MAX_METADATA}", param="metadata"
        )
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequest(
                f"'metadata' has a pair of {len(key)} and {len(value)} characters, at most "
                f"{MAX_METADATA_KEY} and {MAX_METADATA_VALUE}",
                param="metadata",
            )


def _num_top(body: ResponseBody) -> int | None:
    """Logprobs are sent to who names them in `include`, or wants alternatives."""
    if body.top_logprobs or LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    return None


def _params(
    body: ResponseBody, sampling: Sampling, grammar: WantedGrammar | None
) -> ResponseParams:
    text_format = {"type": "text"}
    if grammar is not None and body.text is not None:
        text_format = body.text.format
    return ResponseParams(
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        previous_response_id=body.previous_response_id,
        conversation=_conversation_ref(body.conversation),
        store=body.store is not False,
        temperature=sampling.params.temperature,
        text={"format": text_format},
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.params.top_p,
        max_tool_calls=body.max_tool_calls,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=_shown_reasoning(body.reasoning),
        tool_choice=msgspec.to_builtins(body.tool_choice or "auto"),
        tools=[_shown_tool(tool) for tool in body.tools or ()],
    )


def _conversation_ref(name: str | ConversationName | None) -> dict[str, str] | None:
    if name is None:
        return None
    return {"id": name if isinstance(name, str) else name.id}


def _shown_reasoning(given: ReasoningField | None) -> dict[str, Any] | None:
    if given is None:
        return None
    return {"effort": given.effort, "summary": given.summary or given.generate_summary}


def _shown_tool(tool: ResponseTool) -> dict[str, Any]:
    """A tool with what it takes for granted."""
    shown = {name: getattr(tool, name) for name in ("name", "description", "parameters")}
    return {"type": "function", **shown, "strict": bool(tool.strict)}
