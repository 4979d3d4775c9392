"""What bodies with inputs or a chat have in common: those of embeddings, classes and poolings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frontend.fields.field_ranges import RANGES
from frontend.fields.pooled_fields import (
    MAX_INPUTS,
    MAX_STREAMED_INPUTS,
    PooledFields,
    max_input_tokens,
    pooled_sampling,
)
from frontend.fields.request_body import required_model
from frontend.fields.token_rules import check_token_ids
from frontend.jobs.job import Caller, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.chat.chat_request import Chat, ChatFields, ChatRequests
from frontend.surfaces.chat.messages import Conversation
from frontend.surfaces.completions.completion_request import prompt_list
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.protocol.reply import EncodingFormat, Surface
from shared.protocol.sampling import PoolingParams


class InputFields(PooledFields, omit_defaults=True):
    """Texts, token ids, or a chat; None means default."""

    input: Any = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def field(self) -> str:
        """Which of both is given."""
        return "input" if self.messages is None else "messages"


_OF_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class PooledInputs:
    """Each input becomes a prompt of its own, and so does a chat."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder, chats: ChatRequests) -> None:
        self._models = models
        self._encoder = encoder
        self._chats = chats

    async def job(
        self,
        surface: Surface,
        caller: Caller,
        body: InputFields,
        pooling_of: Callable[[ServedModel], PoolingParams],
        encoding_format: EncodingFormat | None = None,
    ) -> Job:
        """`pooling_of` may raise RequestError, too. Raises RequestError."""
        model, prompts = await self._read(caller, body)
        return Job(
            surface=surface,
            model=model,
            prompts=prompts,
            sampling=pooled_sampling(body, body.field),
            stream=bool(body.stream),
            pooling=pooling_of(model),
            encoding_format=encoding_format or EncodingFormat.FLOAT,
        )

    async def _read(
        self, caller: Caller, body: InputFields
    ) -> tuple[ServedModel, tuple[Prompt, ...]]:
        """Raises RequestError."""
        name = required_model(body.model)
        RANGES["priority"].check("priority", body.priority)
        _check_is_input_or_chat(body)
        inputs = _inputs(body) if body.messages is None else []
        model = await self._models.model(name)
        if body.messages is not None:
            return model, (await self._chat(caller, model, body),)
        max_tokens = max_input_tokens(body, model.card)
        return model, tuple(await self._prompts(caller, model, inputs, max_tokens))

    async def _chat(self, caller: Caller, model: ServedModel, body: InputFields) -> Prompt:
        """A chat as the model's template writes it. Raises InvalidRequest."""
        conversation = Conversation.of(body.messages)
        if conversation.images:
            raise InvalidRequest(
                "images in 'messages' cannot be embedded or classified", param="messages"
            )
        fields = ChatFields(
            add_generation_prompt=bool(body.add_generation_prompt),
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        most = model.card.max_context_len
        chat = Chat(fields, [conversation], None)
        token_ids = await self._chats.prompt_ids(caller, model, chat, most)
        if len(token_ids) > most:
            raise ContextLengthExceeded(
                len(token_ids), most, None, "messages", subject="'messages'"
            )
        return Prompt(token_ids)

    async def _prompts(
        self,
        caller: Caller,
        model: ServedModel,
        inputs: list[str | list[int]],
        max_tokens: int | None,
    ) -> list[Prompt]:
        names = ["input"] if len(inputs) == 1 else [f"input[{idx}]" for idx in range(len(inputs))]
        texts = {
            name: item for name, item in zip(names, inputs, strict=True) if isinstance(item, str)
        }
        encoded = iter(
            await self._encoder.encode_batch(
                caller, model, list(texts.values()), list(texts), max_tokens
            )
        )
        prompts = []
        for name, item in zip(names, inputs, strict=True):
            if isinstance(item, str):
                token_ids = next(encoded)
            else:
                check_token_ids(name, item, model.card.vocab_size)
                token_ids = item[:max_tokens]
            if not item or not token_ids:
                raise InvalidRequest(f"'{name}' is empty", param=name)
            if len(token_ids) > model.card.max_context_len:
                raise ContextLengthExceeded(
                    len(token_ids), model.card.max_context_len, None, name, subject=f"'{name}'"
                )
            prompts.append(Prompt(token_ids))
        return prompts


def _check_is_input_or_chat(body: InputFields) -> None:
    """Raises InvalidRequest."""
    if body.messages is None:
        for name in _OF_CHAT:
            if value := getattr(body, name):
                raise InvalidRequest(f"'{name}' is {value!r}, without 'messages'", param=name)
        return
    for name in ("input", "truncate_prompt_tokens"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"'{name}' and 'messages' exclude each other", param=name)


def _inputs(body: InputFields) -> list[str | list[int]]:
    """Raises InvalidRequest."""
    if body.input == []:
        raise InvalidRequest("'input' is empty", param="input")
    if isinstance(body.input, list) and all(isinstance(item, list) for item in body.input):
        for idx, item in enumerate(body.input):
            if not item:
                raise InvalidRequest(f"'input[{idx}]' is empty", param=f"input[{idx}]")
    inputs = prompt_list(body.input, "input", max_prompts=MAX_INPUTS)
    if body.stream and len(inputs) > MAX_STREAMED_INPUTS:
        raise InvalidRequest(
            f"'input' holds {len(inputs)} inputs, at most {MAX_STREAMED_INPUTS} with 'stream'",
            param="input",
        )
    return inputs
