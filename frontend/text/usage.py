"""How many tokens an answer cost, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from msgspec import UNSET, UnsetType

from frontend.text.text_stream import TextStream
from frontend.text.wire_struct import Count, WireStruct


class PromptTokensDetails(WireStruct, frozen=True, kw_only=True):
    """What the tokens of the prompts are, and what became of them."""

    cached_tokens: Count  # came from the prefix cache
    audio_tokens: Count | UnsetType = UNSET  # where there is audio


class CompletionTokensDetails(WireStruct, frozen=True, kw_only=True):
    """What the output tokens are."""

    reasoning_tokens: Count


class Usage(WireStruct, frozen=True, kw_only=True):
    """Tokens of prompts, each counted once, and of all that was made of them."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class PromptUsage(WireStruct, frozen=True, kw_only=True):
    """Tokens of what has no output tokens."""

    prompt_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails


class InputTokensDetails(WireStruct, frozen=True, kw_only=True):
    """What became of the tokens that came in."""

    cached_tokens: Count  # came from the prefix cache
    cache_write_tokens: Count | UnsetType = UNSET


class OutputTokensDetails(WireStruct, frozen=True, kw_only=True):
    """What the tokens are that came out."""

    reasoning_tokens: Count


class TokenUsage(WireStruct, frozen=True, kw_only=True):
    """Tokens of a response, and of all lines of a batch."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class PromptCounts(NamedTuple):
    """Counts of an answer's prompts: each counts once, however many choices it has."""

    num_tokens: int
    num_cached: int
    num_audio: int

    @property
    def details(self) -> PromptTokensDetails:
        return PromptTokensDetails(
            cached_tokens=self.num_cached, audio_tokens=self.num_audio or UNSET
        )

    @classmethod
    def of(cls, streams: Sequence[TextStream]) -> Self:
        """As far as it is known now."""
        first = streams[0].reply
        n = max(1, first.num_choices // first.num_prompts)
        prompts = streams[::n]
        return cls(
            sum(stream.reply.num_prompt_tokens for stream in prompts),
            sum(map(num_cached_tokens, prompts)),
            sum(stream.reply.num_audio_tokens for stream in prompts),
        )


def usage_of(streams: Sequence[TextStream], num_reasoning: int | None = None) -> Usage:
    """Each prompt counts once, however many choices it has.

    `num_reasoning` of the output tokens are reasoning; None: nobody can tell.
    """
    prompts = PromptCounts.of(streams)
    num_output_tokens = sum(stream.num_output_tokens for stream in streams)
    return Usage(
        prompt_tokens=prompts.num_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=prompts.num_tokens + num_output_tokens,
        prompt_tokens_details=prompts.details,
        completion_tokens_details=UNSET
        if num_reasoning is None
        else CompletionTokensDetails(reasoning_tokens=num_reasoning),
    )


def prompt_usage_of(streams: Sequence[TextStream]) -> PromptUsage:
    """The usage of embeddings, scores and rankings."""
    prompts = PromptCounts.of(streams)
    num_output_tokens = sum(stream.num_output_tokens for stream in streams)
    return PromptUsage(
        prompt_tokens=prompts.num_tokens,
        total_tokens=prompts.num_tokens + num_output_tokens,
        prompt_tokens_details=prompts.details,
    )


def num_cached_tokens(stream: TextStream) -> int:
    """Prompt tokens that came from the prefix cache; known at the end."""
    return 0 if stream.finish is None else stream.finish.num_cached_tokens
