"""Bodies of POST /v1/embeddings."""

from __future__ import annotations

from typing import Any, Literal

from frontend.fields.field_ranges import RANGES, Range
from frontend.fields.pooled_fields import (
    MAX_INPUTS,
    MAX_STREAMED_INPUTS,
    POOLED_IGNORED,
    PooledFields,
    max_input_tokens,
    pooled_refusals,
    pooled_sampling,
)
from frontend.fields.request_body import BodyReader, required_model
from frontend.fields.token_rules import check_token_ids
from frontend.jobs.job import Caller, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.chat.chat_request import ChatBody, ChatRequests, Conversation
from frontend.surfaces.completions.completion_request import prompt_list
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.reply import EncodingFormat, Surface
from shared.protocol.sampling import PoolingKind, PoolingParams


class EmbeddingBody(PooledFields, omit_defaults=True):
    """The fields that have an effect; None means default."""

    input: Any = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None


_OF_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
REFUSED = pooled_refusals(EmbeddingBody)


class EmbeddingRequests:
    """Turns bodies into jobs: each input becomes a request of its own, and so does a chat."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder, chats: ChatRequests) -> None:
        self._models = models
        self._encoder = encoder
        self._chats = chats
        self._reader = BodyReader(EmbeddingBody, REFUSED, POOLED_IGNORED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        name = required_model(body.model)
        RANGES["priority"].check("priority", body.priority)
        _check_is_input_or_chat(body)
        inputs = _inputs(body) if body.messages is None else []
        model = await self._models.model(name)
        if body.messages is not None:
            prompts = [await self._chat(caller, model, body)]
        else:
            max_tokens = max_input_tokens(body, model.card)
            prompts = await self._prompts(caller, model, inputs, max_tokens)
        return Job(
            surface=Surface.EMBEDDINGS,
            model=model,
            prompts=tuple(prompts),
            sampling=pooled_sampling(body, "input" if body.messages is None else "messages"),
            stream=bool(body.stream),
            pooling=_pooling(body, model),
            encoding_format=body.encoding_format or EncodingFormat.FLOAT,
        )

    async def _chat(self, caller: Caller, model: ServedModel, body: EmbeddingBody) -> Prompt:
        """A chat as the model's template writes it. Raises InvalidRequest."""
        if Conversation.of(body.messages).images:
            raise InvalidRequest("images in 'messages' cannot be embedded", param="messages")
        chat = ChatBody(
            messages=body.messages,
            add_generation_prompt=bool(body.add_generation_prompt),
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        most = model.card.max_context_len
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


def _check_is_input_or_chat(body: EmbeddingBody) -> None:
    """Raises InvalidRequest."""
    if body.messages is None:
        for name in _OF_CHAT:
            if value := getattr(body, name):
                raise InvalidRequest(f"'{name}' is {value!r}, without 'messages'", param=name)
        return
    for name in ("input", "truncate_prompt_tokens"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"'{name}' and 'messages' exclude each other", param=name)


def _inputs(body: EmbeddingBody) -> list[str | list[int]]:
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


def _pooling(body: EmbeddingBody, model: ServedModel) -> PoolingParams:
    """What the request says, else the model's way. Raises InvalidRequest."""
    card = model.card.embedding
    if card is None:
        raise InvalidRequest(f"The model '{model.name}' makes no embeddings.", param="model")
    if body.pooling is not None and card.pooling is PoolingKind.ENCODED:
        raise InvalidRequest(
            f"'pooling' is {body.pooling!r}, but '{model.name}' is an encoder, which embeds as its "
            "own files say",
            param="pooling",
        )
    if body.dimensions is not None:
        _check_dimensions(body.dimensions, card, model.name)
    return PoolingParams(
        kind=card.pooling if body.pooling is None else PoolingKind(body.pooling),
        normalize=card.normalize if body.normalize is None else body.normalize,
        dimensions=body.dimensions,
    )


def _check_dimensions(dimensions: int, card: EmbeddingCard, name: str) -> None:
    if dimensions == card.num_dimensions:
        return
    if not card.is_matryoshka:
        raise InvalidRequest(
            f"'dimensions' is {dimensions}, but the embeddings of '{name}' cannot be shortened: "
            f"they have {card.num_dimensions} dimensions",
            param="dimensions",
        )
    if card.matryoshka_dimensions and dimensions not in card.matryoshka_dimensions:
        allowed = ", ".join(map(str, card.matryoshka_dimensions))
        raise InvalidRequest(
            f"'dimensions' is {dimensions}, '{name}' has embeddings of {allowed} or "
            f"{card.num_dimensions}",
            param="dimensions",
        )
    Range(low=1, high=card.num_dimensions).check("dimensions", dimensions)
