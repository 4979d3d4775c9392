"""Logprobs as clients read them: in OpenAI's two shapes, vLLM's for prompts, and SGLang's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from frontend.text.token_texts import TextOffsets, TokenTexts
from frontend.text.wire_struct import Count, WireStruct
from shared.protocol.logprobs import NO_RANK, TokenLogprob

MAX_EVENT_LOGPROBS = 256  # with 20 alternatives each they stay below NATS's max_payload
LEAST_LOGPROB = -9999.0  # JSON has no -Infinity


class TopLogprob(WireStruct, frozen=True, kw_only=True):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[Count]


class TokenLogprobView(WireStruct, frozen=True, kw_only=True):
    """A token that was chosen."""

    token: str
    logprob: float
    bytes: list[Count]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(WireStruct, frozen=True, kw_only=True):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprobView]
    refusal: None


class CompletionLogprobs(WireStruct, frozen=True, kw_only=True):
    """`logprobs` of a completion choice; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[Count]


class PromptLogprob(WireStruct, frozen=True, kw_only=True):
    """A token of a prompt, or one that could have been there."""

    logprob: float
    rank: Count
    decoded_token: str


def chat_logprobs(
    records: Sequence[TokenLogprob], texts: TokenTexts, *, as_ids: bool = False
) -> ChatLogprobs:
    """`as_ids`: tokens are named by their ids."""
    content = token_views(records, texts, as_ids=as_ids)
    return ChatLogprobs(content=content, refusal=None)


def token_views(
    records: Sequence[TokenLogprob], texts: TokenTexts, *, as_ids: bool = False
) -> list[TokenLogprobView]:
    """`as_ids`: tokens are named by their ids."""

    def name(token_id: int) -> str:
        return _id_name(token_id) if as_ids else texts.text_of(token_id)

    def top(token_id: int, logprob: float) -> TopLogprob:
        told = list(texts.bytes_of(token_id))
        return TopLogprob(token=name(token_id), logprob=_finite(logprob), bytes=told)

    return [
        TokenLogprobView(
            token=name(record.token_id),
            logprob=_finite(record.logprob),
            bytes=list(texts.bytes_of(record.token_id)),
            top_logprobs=[top(*each) for each in record.top],
        )
        for record in records
    ]


def completion_logprobs(
    records: Sequence[TokenLogprob],
    texts: TokenTexts,
    offsets: TextOffsets,
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """`as_ids`: tokens are named by their ids."""

    def name(token_id: int) -> str:
        return _id_name(token_id) if as_ids else texts.text_of(token_id, prefix="bytes:")

    return CompletionLogprobs(
        tokens=[name(record.token_id) for record in records],
        token_logprobs=[
            None if record.rank == NO_RANK else _finite(record.logprob) for record in records
        ],
        top_logprobs=[_by_name(record, name) for record in records],
        text_offset=[offsets.next(record.token_id) for record in records],
    )


def prompt_logprobs(
    records: Sequence[TokenLogprob], texts: TokenTexts
) -> list[dict[str, PromptLogprob] | None]:
    """vLLM's `prompt_logprobs`: by token id, the prompt's own token first."""
    return [None if record.rank == NO_RANK else _by_id(record, texts) for record in records]


def native_logprobs(
    records: Sequence[TokenLogprob], texts: TokenTexts, prefix: str, num_named: int
) -> dict[str, Any]:
    """SGLang's `<prefix>_token_logprobs`: (logprob, id, text) of each token.

    The last `num_named` alternatives are those that the request names.
    """
    view: dict[str, Any] = {
        f"{prefix}_token_logprobs": [
            _triple(record.token_id, None if record.rank == NO_RANK else record.logprob, texts)
            for record in records
        ]
    }
    num_top = max((len(record.top) for record in records), default=num_named) - num_named
    if num_top:
        view[f"{prefix}_top_logprobs"] = _triples(records, slice(0, num_top), texts)
    if num_named:
        view[f"{prefix}_token_ids_logprobs"] = _triples(records, slice(num_top, None), texts)
    return view


def _triples(
    records: Sequence[TokenLogprob], alternatives: slice, texts: TokenTexts
) -> list[list[Any] | None]:
    return [
        None
        if record.rank == NO_RANK
        else [_triple(token_id, logprob, texts) for token_id, logprob in record.top[alternatives]]
        for record in records
    ]


def _triple(token_id: int, logprob: float | None, texts: TokenTexts) -> list[Any]:
    return [None if logprob is None else _finite(logprob), token_id, texts.text_of(token_id)]


def _by_name(record: TokenLogprob, name: Callable[[int], str]) -> dict[str, float] | None:
    """The chosen token first. Of tokens with the same name the likelier one is told."""
    if record.rank == NO_RANK:
        return None
    by_name: dict[str, float] = {}
    for token_id, logprob in ((record.token_id, record.logprob), *record.top):
        key = name(token_id)
        by_name[key] = max(_finite(logprob), by_name.get(key, LEAST_LOGPROB))
    return by_name


def _by_id(record: TokenLogprob, texts: TokenTexts) -> dict[str, PromptLogprob]:
    ranked = [(record.rank, record.token_id, record.logprob)]
    ranked += [(rank, *top) for rank, top in enumerate(record.top, start=1)]
    by_id: dict[str, PromptLogprob] = {}
    for rank, token_id, logprob in ranked:
        text = texts.text_of(token_id)
        view = PromptLogprob(logprob=_finite(logprob), rank=rank, decoded_token=text)
        by_id.setdefault(str(token_id), view)
    return by_id


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
