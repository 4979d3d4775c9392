"""Prompts to token ids and back, by the code that real requests go through."""

from __future__ import annotations

from typing import Any

from frontend.fields.request_body import BodyReader
from frontend.fields.sampling_fields import sampling_defaults
from frontend.fields.token_rules import check_token_ids
from frontend.inference.admission.admission import Admission
from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.chat.chat_request import Chat, ChatBody, ChatRequests
from frontend.surfaces.tokens import (
    DETOKENIZE_IGNORED,
    DETOKENIZE_REFUSED,
    IGNORED,
    OF_CHAT,
    REFUSED,
    TEMPLATE_REFUSED,
    DetokenizeBody,
    Detokenized,
    Modalities,
    Props,
    PropsParams,
    PropsSettings,
    TemplateBody,
    Templated,
    TokenizeBody,
    Tokenized,
    TokenizerInfo,
)
from frontend.text.event_writer import encode_json
from shared.errors import ContextLengthExceeded, InvalidRequest, RequestTooLarge

MIN_LIMIT = 128 * 1024  # tokens that are told also where the model takes fewer


class Tokenizing:
    """JSON of the answers, in vLLM's shape."""

    def __init__(
        self,
        models: ModelDirectory,
        encoder: PromptEncoder,
        chats: ChatRequests,
        admission: Admission,
    ) -> None:
        self._admission = admission
        self._models = models
        self._encoder = encoder
        self._chats = chats
        self._template_bodies = BodyReader(TemplateBody, TEMPLATE_REFUSED, IGNORED)
        self._tokenize_bodies = BodyReader(TokenizeBody, REFUSED, IGNORED)
        self._detokenize_bodies = BodyReader(DetokenizeBody, DETOKENIZE_REFUSED, DETOKENIZE_IGNORED)

    async def tokenize(self, raw: dict[str, Any], caller: Caller) -> bytes:
        """Raises RequestError."""
        self._admission.admit_call(caller)
        body = self._tokenize_bodies.read(raw, caller.unknown)
        _check_is_text_or_chat(body)
        model = await self._model(body.model)
        try:
            token_ids = await self._token_ids(caller, model, body)
        except ContextLengthExceeded as exc:
            raise _too_large(exc.param or "prompt", "more", model) from exc
        if len(token_ids) > _limit(model):
            name = "prompt" if body.prompt is not None else "messages"
            raise _too_large(name, f"{len(token_ids)} tokens", model)
        return await self._encoder.run(
            caller,
            len(token_ids),
            lambda: _tokenized(model, token_ids, bool(body.return_token_strs)),
        )

    async def _token_ids(self, caller: Caller, model: ServedModel, body: TokenizeBody) -> list[int]:
        limit = _limit(model)
        if body.prompt is None:
            chat = _chat_of(body)
            chat.add_special_tokens = body.add_special_tokens
            return await self._chats.prompt_ids(caller, model, Chat.of(chat), limit)
        return await self._encoder.encode(
            caller,
            model,
            body.prompt,
            "prompt",
            add_special_tokens=body.add_special_tokens is not False,
            limit=limit,
        )

    async def apply_template(self, raw: dict[str, Any], caller: Caller) -> bytes:
        """The text that a chat becomes, in llama.cpp's shape. Raises RequestError."""
        self._admission.admit_call(caller)
        body = self._template_bodies.read(raw, caller.unknown)
        model = await self._model(body.model)
        text = await self._chats.prompt_text(caller, model, Chat.of(_chat_of(body)))
        return encode_json(Templated(prompt=text))

    async def detokenize(self, raw: dict[str, Any], caller: Caller) -> bytes:
        """Raises RequestError."""
        self._admission.admit_call(caller)
        body = self._detokenize_bodies.read(raw, caller.unknown)
        if body.tokens is None:
            raise InvalidRequest("'tokens' is required", param="tokens", code="missing_field")
        model = await self._model(body.model)
        if len(body.tokens) > _limit(model):
            raise _too_large("tokens", f"{len(body.tokens)} tokens", model)
        check_token_ids("tokens", body.tokens, model.card.vocab_size)
        text = await self._encoder.decode(caller, model, body.tokens)
        return encode_json(Detokenized(prompt=text))

    async def info(self, name: str | None) -> bytes:
        """What is told of the model's tokenizer. Raises RequestError."""
        model = await self._model(name)
        return encode_json(
            TokenizerInfo(
                model=model.name,
                max_model_len=model.card.max_context_len,
                vocab_size=model.text.tokenizer.get_vocab_size(),
                tokenizer_hash=model.card.tokenizer_hash,
                **model.text.facts.view(),
            )
        )

    async def props(self, name: str | None) -> bytes:
        """What llama.cpp's `/props` tell of a model. Raises RequestError."""
        model = await self._model(name)
        card, facts = model.card, model.text.facts
        params = sampling_defaults(card, use_model_defaults=self._models.use_model_defaults)
        params["repeat_penalty"] = params.pop("repetition_penalty")
        settings = PropsSettings(n_ctx=card.max_context_len, params=PropsParams(**params))
        return encode_json(
            Props(
                default_generation_settings=settings,
                model_alias=model.name,
                modalities=Modalities(vision=card.sight is not None, audio=card.sound is not None),
                chat_template=facts.chat_template or "",
                bos_token=facts.special_tokens.get("bos_token", ""),
                eos_token=facts.special_tokens.get("eos_token", ""),
            )
        )

    async def _model(self, name: str | None) -> ServedModel:
        return await (self._models.model(name) if name else self._models.only_model())


def _limit(model: ServedModel) -> int:
    """Tokens of one question: what the model can read, and some more to count texts by."""
    return max(model.card.max_context_len, MIN_LIMIT)


def _too_large(name: str, number: str, model: ServedModel) -> RequestTooLarge:
    most = f"at most {_limit(model)} tokens are told at a time"
    return RequestTooLarge(f"'{name}' has {number}: {most}", param=name)


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


def _chat_of(body: TemplateBody) -> ChatBody:
    return ChatBody(messages=body.messages, **{name: getattr(body, name) for name in OF_CHAT})


def _tokenized(model: ServedModel, token_ids: list[int], with_strings: bool) -> bytes:
    """Slow for many tokens: off the event loop."""
    name_of = model.text.tokenizer.id_to_token
    return encode_json(
        Tokenized(
            count=len(token_ids),
            max_model_len=model.card.max_context_len,
            tokens=token_ids,
            token_strs=[name_of(token_id) for token_id in token_ids] if with_strings else None,
        )
    )
