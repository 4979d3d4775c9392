"""The only tokens that requests allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from worker.engine.request.req import Req
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary


@dataclass(frozen=True, slots=True)
class _Allowed:
    by_row: list[tuple[int, torch.Tensor]]  # row, and [num_ids] int64: all else becomes -inf

    @property
    def changed_rows(self) -> Iterable[int]:
        return [row for row, _ in self.by_row]

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        for row, token_ids in self.by_row:
            ids = place.put(token_ids)
            allowed = logits[row, ids]
            logits[row] = -torch.inf
            logits[row, ids] = allowed


class AllowedTokens:
    """`allowed_token_ids`."""

    def wants(self, req: Req) -> bool:
        return req.logit_rules is not None and len(req.logit_rules.allowed_ids) > 0

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        return _Allowed(
            [
                (row, torch.from_numpy(rules.allowed_ids[rules.allowed_ids < vocabulary.size]))
                for row, point in points
                if (rules := point.req.logit_rules) is not None
            ]
        )
