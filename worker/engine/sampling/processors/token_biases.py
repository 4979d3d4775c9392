"""What requests add to single logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from worker.engine.request.req import Req
from worker.engine.sampling.logits_processor import (
    LogitChange,
    LogitPlace,
    RowPoint,
    TokenPairs,
    Vocabulary,
)


@dataclass(frozen=True, slots=True)
class TokenBias(TokenPairs):
    """What is added to the logits of tokens."""

    values: torch.Tensor  # [num_pairs] float32

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        places = place.put(self.rows) * logits.shape[1] + place.put(self.token_ids)
        logits.view(-1).index_add_(0, places, place.put(self.values))


class TokenBiases:
    """`logit_bias`."""

    def wants(self, req: Req) -> bool:
        return req.logit_rules is not None and len(req.logit_rules.bias_ids) > 0

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        parts = [
            (np.full(len(rules.bias_ids), row, np.int64), rules.bias_ids, rules.bias_values)
            for row, point in points
            if (rules := point.req.logit_rules) is not None
        ]
        rows, token_ids, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        is_known = token_ids < vocabulary.size
        rows, token_ids, values = rows[is_known], token_ids[is_known], values[is_known]
        return TokenBias(
            torch.from_numpy(rows), torch.from_numpy(token_ids), torch.from_numpy(values)
        )
