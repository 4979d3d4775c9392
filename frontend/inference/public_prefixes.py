"""How much of a prompt is text that an operator has declared to be no tenant's secret."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from frontend.fields.request_body import convert
from frontend.jobs.job import Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ServedModel
from frontend.surfaces.chat.chat_request import Chat, ChatBody, ChatRequests
from frontend.tenants.public_prefix_file import DeclaredPrefix
from shared.errors import RequestError
from shared.protocol.token_ids import pack_token_ids
from shared.telemetry.log import get_logger

# What may follow a prefix. Tokens that come out alike before all of these do before any text.
_NEXT_TEXTS = ("", "a", " a", "\n", "1", ".")
_NEXT_CONTENTS = ("a", " a", "\n\na", "1", '"')
_TOKEN_BYTES = 4

log = get_logger(__name__)


class PublicPrefixes:
    """Declared prefixes in the tokens of each model that is asked for, made when it first is.

    A prompt shares no more than the tokens of a declared prefix with which it begins as a whole:
    that it does is all that another tenant can find out.
    """

    def __init__(
        self, declared: Sequence[DeclaredPrefix], chats: ChatRequests, encoder: PromptEncoder
    ) -> None:
        self._declared = tuple(declared)
        self._models = frozenset(prefix.model for prefix in declared)
        self._chats = chats
        self._encoder = encoder
        self._found: dict[tuple[str, str], list[bytes]] = {}  # by name and tokenizer, longest first
        self._lock = asyncio.Lock()

    async def num_tokens(self, job: Job) -> tuple[int, ...]:
        """The public tokens of each prompt of a job; none of a client's who wants to share with
        nobody.
        """
        if job.model.name not in self._models or job.sampling.cache_salt:
            return (0,) * len(job.prompts)
        prefixes = await self._prefixes(job.model)
        return tuple(
            0 if prompt.embeds else _matching(prefixes, prompt.token_ids) for prompt in job.prompts
        )

    async def _prefixes(self, model: ServedModel) -> list[bytes]:
        key = model.name, model.card.tokenizer_hash
        async with self._lock:
            if key not in self._found:
                made = [
                    await self._tokens(prefix, model)
                    for prefix in self._declared
                    if prefix.model == model.name
                ]
                self._found[key] = sorted(filter(None, made), key=len, reverse=True)
        return self._found[key]

    async def _tokens(self, prefix: DeclaredPrefix, model: ServedModel) -> bytes:
        """Packed; b"" where the model cannot read it."""
        try:
            if prefix.chat is None:
                prompts = [await self._of_text(model, prefix.text + each) for each in _NEXT_TEXTS]
            else:
                prompts = [await self._of_chat(model, prefix.chat, c) for c in _NEXT_CONTENTS]
        except RequestError as exc:
            log.error("shared_prefix_unusable", entry=prefix.where, model=model.name, why=str(exc))
            return b""
        num_tokens = _num_common(prompts)
        log.info("shared_prefix_read", entry=prefix.where, model=model.name, num_tokens=num_tokens)
        return pack_token_ids(prompts[0][:num_tokens])

    async def _of_text(self, model: ServedModel, text: str) -> list[int]:
        return await self._encoder.encode(Caller(), model, text, "text", add_special_tokens=True)

    async def _of_chat(self, model: ServedModel, chat: dict[str, Any], content: str) -> list[int]:
        messages = chat["messages"]
        # Templates want turns to alternate.
        role = "assistant" if messages[-1]["role"] == "user" else "user"
        body = {**chat, "messages": [*messages, {"role": role, "content": content}]}
        return await self._chats.prompt_ids(Caller(), model, Chat.of(convert(body, ChatBody)))


def _num_common(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all of them begin."""
    columns = enumerate(zip(*prompts, strict=False))
    return next((i for i, ids in columns if len(set(ids)) > 1), min(map(len, prompts)))


def _matching(prefixes: Sequence[bytes], token_ids: Sequence[int]) -> int:
    """Tokens of the longest prefix with which the prompt begins."""
    if not prefixes:
        return 0
    longest = len(prefixes[0]) // _TOKEN_BYTES
    packed = pack_token_ids(token_ids[:longest])
    return next((len(each) // _TOKEN_BYTES for each in prefixes if packed.startswith(each)), 0)
