"""The tokens that grammars let through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.grammar.grammar_matcher import Bitmask, GrammarBackend, GrammarMatcher
from worker.engine.request.req import Req
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary


@dataclass(frozen=True, slots=True)
class _Masks:
    """Rows of logits with a grammar, and their tokens."""

    rows: list[int]  # [num_masked]
    bitmask: Bitmask  # [num_masked, ceil(vocab_size / 32)]

    @property
    def changed_rows(self) -> Iterable[int]:
        return self.rows

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        place.forbid(logits, self.rows, self.bitmask)


class Grammars:
    """Structured output, and calls of tools that are held to their schemas."""

    def wants(self, req: Req) -> bool:
        return req.matcher is not None

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        if vocabulary.grammars is None:
            return None
        bitmask = _bitmask(points, vocabulary.size, vocabulary.grammars)
        for words, (_, point) in zip(bitmask, points, strict=True):
            _keep_going(words, point.req.early_end_ids(point.num_output_tokens))
        return _Masks([row for row, _ in points], bitmask)


def _bitmask(points: Sequence[RowPoint], vocab_size: int, grammars: GrammarBackend) -> Bitmask:
    """[num_points, ceil(vocab_size / 32)]; all are of requests with a grammar."""
    num_words = -(-vocab_size // 32)
    bitmask = np.zeros((len(points), num_words), np.int32)
    drafts = {point.req: point.draft_ids for _, point in points if point.draft_ids}  # the longest
    plain = [idx for idx, (_, point) in enumerate(points) if point.req not in drafts]
    masks = np.zeros((len(plain), num_words), np.int32)
    grammars.fill_masks([_matcher(points[idx]) for idx in plain], masks)
    bitmask[plain] = masks
    for req, draft_ids in drafts.items():
        own = [idx for idx, (_, point) in enumerate(points) if point.req is req]
        masks = np.zeros((len(draft_ids) + 1, num_words), np.int32)
        grammars.fill_draft_masks(_matcher(points[own[0]]), draft_ids, masks)
        bitmask[own] = masks[[len(points[idx][1].draft_ids) for idx in own]]
    return bitmask


def _matcher(row_point: RowPoint) -> GrammarMatcher:
    matcher = row_point[1].req.matcher
    assert matcher is not None, "it wants those with a grammar"
    return matcher


def _keep_going(words: npt.NDArray[np.int32], early_end_ids: frozenset[int]) -> None:
    """Takes out the tokens that would end the output too early, as long as others are left.

    `words` is one row of the mask, changed in place.
    """
    if not early_end_ids:
        return
    others = words.view(np.uint32).copy()
    for token_id in early_end_ids:
        if token_id // 32 < len(others):
            others[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
    if others.any():
        words[:] = others.view(np.int32)
