"""The masks of one step: which tokens each row with a grammar may choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.grammar.grammar_matcher import Bitmask, GrammarBackend
from worker.engine.request.sample_point import SamplePoint


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Rows of logits with a grammar, and their tokens. Host memory."""

    rows: list[int]  # [num_masked]
    bitmask: Bitmask  # [num_masked, ceil(vocab_size / 32)]

    def apply(self, logits: torch.Tensor) -> None:
        """`logits` [num_rows, vocab_size] float32, on the CPU: what may not come becomes -inf."""
        bits = np.unpackbits(self.bitmask.view(np.uint8), axis=1, bitorder="little")
        is_forbidden = torch.from_numpy(bits[:, : logits.shape[1]] == 0)
        for row, is_forbidden_here in zip(self.rows, is_forbidden, strict=True):
            logits[row].masked_fill_(is_forbidden_here, -torch.inf)


def grammar_masks(
    points: Sequence[tuple[int, SamplePoint]], backend: GrammarBackend, vocab_size: int
) -> GrammarMasks | None:
    """Of those rows that have a grammar. None when there is none."""
    if not points:
        return None
    bitmask = np.zeros((len(points), -(-vocab_size // 32)), np.int32)
    matchers = [matcher for _, point in points if (matcher := point.req.matcher) is not None]
    backend.fill_masks(matchers, bitmask)
    for words, (_, point) in zip(bitmask, points, strict=True):
        assert not point.draft_ids, "a matcher has not read the drafts"
        _keep_going(words, point.req.early_end_ids)
    return GrammarMasks([row for row, _ in points], bitmask)


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
