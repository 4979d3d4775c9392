"""The tokens that grammars let through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.grammar.grammar_matcher import Bitmask
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
        bitmask = np.zeros((len(points), -(-vocabulary.size // 32)), np.int32)
        matchers = [matcher for _, point in points if (matcher := point.req.matcher) is not None]
        vocabulary.grammars.fill_masks(matchers, bitmask)
        for words, (_, point) in zip(bitmask, points, strict=True):
            assert not point.draft_ids, "a matcher has not read the drafts"
            _keep_going(words, point.req.early_end_ids)
        return _Masks([row for row, _ in points], bitmask)


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
