"""What /v1/completions answers: whole, and as events of a stream."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from frontend.text.logprob_view import CompletionLogprobs, PromptLogprob
from frontend.text.usage import Usage
from frontend.text.wire_struct import Count, WireStruct


class CompletionChoice(WireStruct, frozen=True, kw_only=True):
    """One of the texts."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    stop_reason: str | int | UnsetType | None = UNSET
    matched_stop: str | int | UnsetType | None = UNSET
    cumulative_logprob: float | UnsetType = UNSET  # of what a beam search has found
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET
    token_ids: list[Count] | UnsetType = UNSET


class Completion(WireStruct, frozen=True, kw_only=True):
    """The answer that is not streamed."""

    id: str
    object: Literal["text_completion"]
    created: Count  # unix seconds
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunkChoice(WireStruct, frozen=True, kw_only=True):
    """What is new of one of the texts."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    matched_stop: str | int | UnsetType | None = UNSET
    prompt_token_ids: list[Count] | UnsetType = UNSET
    token_ids: list[Count] | UnsetType = UNSET


class CompletionChunk(WireStruct, frozen=True, kw_only=True):
    """An event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: Count  # unix seconds
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChunkChoice]
    usage: Usage | UnsetType | None = UNSET
