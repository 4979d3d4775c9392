"""The tokens of one choice as the log has them by now."""

from __future__ import annotations

from typing import Self

from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.protocol.finish import RunFacts
from shared.protocol.logprobs import num_top_of, unpack_logprobs
from shared.protocol.reply import ReplyParams, SealedReply
from shared.protocol.text import TextChunk


class RunTimes(WireStruct, frozen=True, kw_only=True):
    """The times of the worker that finished it."""

    queue_s: Amount  # inside of it, before the first step
    prefill_s: Amount  # from there to the first token
    decode_s: Amount  # from there to the last

    @classmethod
    def of(cls, run: RunFacts) -> Self:
        return cls(queue_s=run.queue_s, prefill_s=run.prefill_s, decode_s=run.decode_s)


class StreamTokens(WireStruct, frozen=True, kw_only=True):
    """The tokens of a request that waits, runs, or is over."""

    id: str
    choice: Count
    model: str
    num_prompt_tokens: Count
    token_ids: list[Count]
    num_given_tokens: Count  # of these, the first ones, which a fork began with
    logprobs: list[float] | None  # of each, if the request asked for any
    top_logprobs: list[list[tuple[int, float]]] | None  # ids and logprobs of its likeliest tokens
    text: str
    finish_reason: str | None  # null: it has not ended
    num_cached_tokens: Count  # of the prompt
    times: RunTimes | None  # null: no engine has finished it

    @classmethod
    def of(cls, reply: ReplyParams | SealedReply, chunk: TextChunk | None, num_top: int) -> Self:
        """The tokens of all its text; None: there is none yet. `num_top`: alternatives that are
        told.
        """
        if chunk is None:
            chunk = TextChunk(reply.group_id, 0, 0, "")
        records = None
        if chunk.logprobs:
            has = num_top_of(len(chunk.logprobs) // len(chunk.token_ids))
            records = unpack_logprobs(chunk.logprobs, has)
        finish = chunk.finish
        return cls(
            id=reply.group_id,
            choice=reply.choice_idx,
            model=reply.model,
            num_prompt_tokens=reply.num_prompt_tokens,
            token_ids=chunk.token_ids,
            num_given_tokens=0 if finish is None or finish.run is None else finish.run.num_given,
            logprobs=None if records is None else [each.logprob for each in records],
            top_logprobs=[list(each.top[:num_top]) for each in records]
            if records is not None and num_top
            else None,
            text=chunk.text,
            finish_reason=None if finish is None else finish.reason.value,
            num_cached_tokens=0 if finish is None else finish.num_cached_tokens,
            times=None if finish is None or finish.run is None else RunTimes.of(finish.run),
        )
