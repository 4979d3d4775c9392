"""Prompts to token ids and back, by the code that real requests go through."""

from __future__ import annotations

from typing import Any

from frontend.answers.event_writer import encode_json
from frontend.model_directory import ModelDirectory, ServedModel
from frontend.prompt_encoder import PromptEncoder
from frontend.requests.chat_request import ChatBody, ChatRequests
from frontend.requests.request_body import BodyReader
from frontend.requests.token_rules import check_token_ids
from frontend.tokens.bodies import OF_CHAT, REFUSED, DetokenizeBody, TokenizeBody
from shared.errors import InvalidRequest, RequestTooLarge

MAX_TOKENS = 1_000_000  # of one answer; a body holds no more ids than that either


class Tokenizing:
    """JSON of the answers, in vLLM's shape."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder, chats: ChatRequests) -> None:
        self._models = models
        self._encoder = encoder
        self._chats = chats
        self._tokenize_bodies = BodyReader(TokenizeBody, REFUSED)
        self._detokenize_bodies = BodyReader(DetokenizeBody, {})

    async def tokenize(self, raw: dict[str, Any]) -> bytes:
        """Raises RequestError."""
        body = self._tokenize_bodies.read(raw)
        _check_is_text_or_chat(body)
        model = await self._model(body.model)
        if body.prompt is not None:
            token_ids = await self._encoder.encode(
                model, body.prompt, add_special_tokens=body.add_special_tokens is not False
            )
        else:
            token_ids = await self._chats.prompt_ids(model, _chat_of(body))
        if len(token_ids) > MAX_TOKENS:
            name = "prompt" if body.prompt is not None else "messages"
            raise RequestTooLarge(
                f"'{name}' has {len(token_ids)} tokens, at most {MAX_TOKENS} are told", param=name
            )
        return await self._encoder.run(
            len(token_ids), lambda: _tokenized(model, token_ids, bool(body.return_token_strs))
        )

    async def detokenize(self, raw: dict[str, Any]) -> bytes:
        """Raises RequestError."""
        body = self._detokenize_bodies.read(raw)
        if body.tokens is None:
            raise InvalidRequest("'tokens' is required", param="tokens", code="missing_field")
        model = await self._model(body.model)
        check_token_ids("tokens", body.tokens, model.card.vocab_size)
        return encode_json({"prompt": await self._encoder.decode(model, body.tokens)})

    async def info(self, name: str | None) -> bytes:
        """Of the model's tokenizer. Raises RequestError."""
        model = await self._model(name)
        return encode_json(
            {
                "model": model.name,
                "max_model_len": model.card.max_context_len,
                "vocab_size": model.text.tokenizer.get_vocab_size(),
                "tokenizer_hash": model.card.tokenizer_hash,
                **model.text.facts.view(),
            }
        )

    async def _model(self, name: str | None) -> ServedModel:
        return await (self._models.model(name) if name else self._models.only_model())


def _check_is_text_or_chat(body: TokenizeBody) -> None:
    """Raises InvalidRequest."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest(
            "one of 'prompt' and 'messages' is required"
            if body.prompt is None
            else "'prompt' and 'messages' exclude each other",
            param="prompt",
            code="missing_field" if body.prompt is None else "invalid_value",
        )
    if body.prompt is None:
        return
    for name in sorted(OF_CHAT):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"'{name}' is of a chat, and there is a 'prompt'", param=name)


def _chat_of(body: TokenizeBody) -> ChatBody:
    return ChatBody(
        messages=body.messages,
        add_special_tokens=body.add_special_tokens,
        **{name: getattr(body, name) for name in OF_CHAT},
    )


def _tokenized(model: ServedModel, token_ids: list[int], with_strings: bool) -> bytes:
    """Slow for many tokens: off the event loop."""
    name_of = model.text.tokenizer.id_to_token
    return encode_json(
        {
            "count": len(token_ids),
            "max_model_len": model.card.max_context_len,
            "tokens": token_ids,
            "token_strs": [name_of(token_id) for token_id in token_ids] if with_strings else None,
        }
    )
