"""What /v1/score and /v1/rerank answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from frontend.text.usage import PromptUsage
from frontend.text.wire_struct import Count, WireStruct
from shared.protocol.reply import ScoreMethod


class Score(WireStruct, frozen=True, kw_only=True):
    """The score of one pair of texts."""

    index: Count
    object: Literal["score"]
    score: float


class ScoreList(WireStruct, frozen=True, kw_only=True):
    """Those of all pairs. Streamed, each comes by itself, and the list at the end is empty."""

    id: str
    object: Literal["list"]
    created: Count  # unix seconds
    model: str
    score_method: ScoreMethod
    data: list[Score]
    usage: PromptUsage


class RankedText(WireStruct, frozen=True, kw_only=True):
    """A document as it was given."""

    text: str


class RankedDocument(WireStruct, frozen=True, kw_only=True):
    """How relevant one document is."""

    index: Count
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Ranking(WireStruct, frozen=True, kw_only=True):
    """All documents, or the first of them, best first."""

    id: str
    object: Literal["rerank"]
    model: str
    score_method: ScoreMethod
    results: list[RankedDocument]
    usage: PromptUsage


class RankedEvent(WireStruct, frozen=True, kw_only=True):
    """An event of a stream: a document, when its score is known."""

    object: Literal["rerank.result"]
    index: Count
    relevance_score: float
    document: RankedText | UnsetType = UNSET
