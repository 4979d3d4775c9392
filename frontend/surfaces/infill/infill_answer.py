"""What /infill answers: whole, and as events of a stream."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from frontend.text.wire_struct import Count, WireStruct


class Infill(WireStruct, frozen=True, kw_only=True):
    """A whole text; in a stream what is new of it, and with `stop` how it ended."""

    index: Count
    content: str
    tokens: list[Count]
    stop: bool
    tokens_predicted: Count
    tokens_evaluated: Count
    model: str | UnsetType = UNSET  # this and what follows where `stop` is true
    stop_type: Literal["eos", "limit", "word"] | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_cached: Count | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
