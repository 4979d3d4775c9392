"""What /generate answers."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from frontend.text.wire_struct import Count, WireStruct

ScoredToken = tuple[float | None, int, str]  # logprob, id, text


class FinishObject(WireStruct, frozen=True, kw_only=True):
    """Why a text ended."""

    type: str
    matched: str | int | UnsetType = UNSET  # what it ended at
    length: Count | UnsetType = UNSET  # tokens, where they were all that was asked for


class MetaInfo(WireStruct, frozen=True, kw_only=True):
    """How far a text has got."""

    id: str
    finish_reason: FinishObject | None  # None: it goes on
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    input_token_logprobs: list[ScoredToken] | UnsetType = UNSET
    input_top_logprobs: list[list[ScoredToken] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[ScoredToken] | None] | UnsetType = UNSET
    output_token_logprobs: list[ScoredToken] | UnsetType = UNSET
    output_top_logprobs: list[list[ScoredToken] | None] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[ScoredToken] | None] | UnsetType = UNSET
    # With the end: of the prompt's tokens a list, then of each token of the output but the last.
    hidden_states: list[Any] | UnsetType = UNSET


class GeneratedText(WireStruct, frozen=True, kw_only=True):
    """A whole text, or in a stream what is new of it."""

    text: str
    output_ids: list[Count]
    meta_info: MetaInfo
    index: Count | UnsetType = UNSET  # where there are several
