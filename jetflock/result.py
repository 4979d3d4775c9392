"""What the Python client returns: pieces of text as they come, and the whole at the end."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its logprob, of the model's own distribution, and its likeliest rivals."""

    token: str
    logprob: float | None  # None for the first token of a prompt
    token_id: int | None = None  # None for requests by `messages`
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text of one choice. `str(chunk)` is the text."""

    text: str
    choice_idx: int = 0
    finish_reason: str | None = None
    token_ids: tuple[int, ...] = ()  # for requests by `prompt` or `input_ids`
    event_id: str = ""  # `Client.resume(event_id)` goes on after this chunk
    logprobs: tuple[TokenLogprob, ...] = ()  # if the request asked for them

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Choice:
    """One answer; a request with `n` has several."""

    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    embedding: str = ""  # of `Client.embed`: base64 of little-endian float32
    logprobs: list[TokenLogprob] = field(default_factory=list)  # if the request asked for them
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # for `prompt`, `input_ids`


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each input, in their order."""

    vectors: tuple[list[float], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request. `text` and `finish_reason` are those of the first choice."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage | None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says of one choice, whatever API the request came through."""

    choice_idx: int
    text: str
    finish_reason: str | None
    token_ids: tuple[int, ...] = ()
    embedding: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


def pieces_of(event: dict[str, Any]) -> Iterator[Piece]:
    """Of a chat chunk, a completion chunk, an object of /generate, or an embedding."""
    if event.get("object") in ("embedding", "list"):
        for item in event.get("data", [event]):
            yield Piece(item["index"], "", "stop", embedding=item["embedding"])
        return
    if "choices" not in event:
        reason = event["meta_info"]["finish_reason"]
        yield Piece(
            event.get("index", 0),
            event["text"],
            reason["type"] if reason else None,
            tuple(event["output_ids"]),
            logprobs=_native_logprobs(event["meta_info"], "output"),
            prompt_logprobs=_native_logprobs(event["meta_info"], "input"),
        )
        return
    for choice in event["choices"]:
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        logprobs = _chat_logprobs(choice.get("logprobs"))
        yield Piece(choice["index"], text or "", choice["finish_reason"], logprobs=logprobs)


def _native_logprobs(meta: dict[str, Any], prefix: str) -> tuple[TokenLogprob, ...]:
    """Of /generate: (logprob, id, text) of each token, and lists of such."""
    tokens = meta.get(f"{prefix}_token_logprobs", ())
    tops = meta.get(f"{prefix}_top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(
            text,
            logprob,
            token_id,
            tuple(TokenLogprob(*_text_first(rival)) for rival in top or ()),
        )
        for (logprob, token_id, text), top in zip(tokens, tops, strict=True)
    )


def _text_first(triple: list[Any]) -> tuple[str, float | None, int]:
    """(logprob, id, text) as (text, logprob, id)."""
    logprob, token_id, text = triple
    return text, logprob, token_id


def _chat_logprobs(logprobs: dict[str, Any] | None) -> tuple[TokenLogprob, ...]:
    items = (logprobs or {}).get("content") or ()
    return tuple(
        TokenLogprob(
            item["token"],
            item["logprob"],
            top=tuple(
                TokenLogprob(rival["token"], rival["logprob"]) for rival in item["top_logprobs"]
            ),
        )
        for item in items
    )


def usage_of(event: dict[str, Any]) -> Usage | None:
    """Of the event that carries it; /generate counts each choice on its own."""
    if (usage := event.get("usage")) is not None:
        details = usage.get("prompt_tokens_details") or {}
        return Usage(
            usage["prompt_tokens"],
            usage.get("completion_tokens", 0),
            details.get("cached_tokens", 0),
        )
    meta = event.get("meta_info")
    if meta is None or meta["finish_reason"] is None:
        return None
    return Usage(meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"])


def vector_of(embedding: str) -> list[float]:
    """The numbers of a base64 of little-endian float32."""
    numbers = array.array("f", base64.b64decode(embedding))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
