"""The tokens that requests may not choose at a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from worker.engine.request.req import Req
from worker.engine.request.sample_point import SamplePoint
from worker.engine.sampling.logits_processor import (
    LogitChange,
    LogitPlace,
    RowPoint,
    TokenPairs,
    Vocabulary,
)


@dataclass(frozen=True, slots=True)
class Banned(TokenPairs):
    """Tokens whose logits become -inf."""

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        pairs = place.put(self.rows), place.put(self.token_ids)
        logits.index_put_(pairs, logits.new_full((), -torch.inf))


class BannedTokens:
    """`bad_words`, and until `min_tokens` what would end the output."""

    def wants(self, req: Req) -> bool:
        return req.sampling.min_tokens > 0 or req.logit_rules is not None

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        pairs = [
            (row, token_id)
            for row, point in points
            for token_id in _banned_ids(point)
            if token_id < vocabulary.size
        ]
        if not pairs:
            return None
        rows, token_ids = zip(*pairs, strict=True)
        return Banned(torch.tensor(rows), torch.tensor(token_ids))


def _banned_ids(point: SamplePoint) -> Iterator[int]:
    """Until it has min_tokens, a request may not choose a token that would end it.

    A grammar takes care of that itself: its output may be complete before.
    """
    req = point.req
    if req.matcher is None and point.num_output_tokens < req.sampling.min_tokens:
        yield from req.stop_token_ids
    rules = req.logit_rules
    if rules is not None:
        yield from rules.banned_ids(point.output_tail(rules.max_prefix_len))
