"""The tokens of one choice as the log has them by now."""

from __future__ import annotations

from typing import Self

from frontend.text.wire_struct import Count, WireStruct
from shared.protocol.logprobs import num_top_of, unpack_logprobs
from shared.protocol.text import TextChunk


class StreamTokens(WireStruct, frozen=True, kw_only=True):
    """Of a request that waits, runs, or is over."""

    id: str
    choice: Count
    token_ids: list[Count]
    logprobs: list[float] | None  # of each, if the request asked for any
    text: str
    finish_reason: str | None  # null: it has not ended

    @classmethod
    def of(cls, group_id: str, choice: int, chunk: TextChunk | None) -> Self:
        """Of all its text; None: there is none yet."""
        if chunk is None:
            chunk = TextChunk(group_id, 0, 0, "")
        logprobs = None
        if chunk.logprobs:
            num_top = num_top_of(len(chunk.logprobs) // len(chunk.token_ids))
            logprobs = [each.logprob for each in unpack_logprobs(chunk.logprobs, num_top)]
        return cls(
            id=group_id,
            choice=choice,
            token_ids=chunk.token_ids,
            logprobs=logprobs,
            text=chunk.text,
            finish_reason=None if chunk.finish is None else chunk.finish.reason.value,
        )
