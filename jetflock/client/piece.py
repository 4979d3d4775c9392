"""What one event says of one choice, whatever API its request came through."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jetflock.client.result import TokenLogprob, ToolCallDiff, Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """All that is new of a choice."""

    choice_idx: int
    text: str
    finish_reason: str | None
    token_ids: tuple[int, ...] = ()
    embedding: str = ""
    score: float | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDiff, ...] = ()

    @property
    def has_news(self) -> bool:
        """Besides a finish, and token ids that made no text yet."""
        return bool(self.text or self.logprobs or self.reasoning or self.tool_calls)


def pieces_of(event: dict[str, Any]) -> Iterator[Piece]:
    """The pieces of a chat chunk, a completion chunk, an object of /generate, an embedding or a
    score.
    """
    kind = event.get("object")
    if kind == "embedding":
        yield Piece(event["index"], "", "stop", embedding=event["embedding"])
    elif kind == "score":
        yield Piece(event["index"], "", "stop", score=event["score"])
    elif kind == "rerank.result":
        yield Piece(event["index"], "", "stop", score=event["relevance_score"])
    elif kind in ("list", "rerank"):
        return  # behind the last of them
    elif "choices" in event:
        for choice in event["choices"]:
            yield _chat_piece(choice)
    else:
        yield _native_piece(event)


def _chat_piece(choice: dict[str, Any]) -> Piece:
    delta = choice.get("delta", {})
    return Piece(
        choice["index"],
        (delta.get("content") if "delta" in choice else choice["text"]) or "",
        choice["finish_reason"],
        tuple(choice.get("token_ids") or ()),
        logprobs=_chat_logprobs(choice.get("logprobs")),
        reasoning=delta.get("reasoning_content") or "",
        tool_calls=tuple(map(_call_diff, delta.get("tool_calls") or ())),
    )


def _call_diff(call: dict[str, Any]) -> ToolCallDiff:
    function = call.get("function", {})
    return ToolCallDiff(
        call["index"],
        call.get("id") or "",
        function.get("name") or "",
        function.get("arguments") or "",
    )


def _native_piece(event: dict[str, Any]) -> Piece:
    meta = event["meta_info"]
    reason = meta["finish_reason"]
    return Piece(
        event.get("index", 0),
        event["text"],
        reason["type"] if reason else None,
        tuple(event["output_ids"]),
        logprobs=_native_logprobs(meta, "output"),
        prompt_logprobs=_native_logprobs(meta, "input"),
    )


def _native_logprobs(meta: dict[str, Any], prefix: str) -> tuple[TokenLogprob, ...]:
    """The logprobs of /generate: (logprob, id, text) of each token, and lists of such."""
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
    """The usage in the event that carries it; /generate counts each choice on its own."""
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
