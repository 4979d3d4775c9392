"""The samplers that act on one row at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from worker.engine.request.req import Req
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary
from worker.engine.sampling.narrowing import Narrowing, narrows


@dataclass(frozen=True, slots=True)
class _Narrowed:
    by_row: list[tuple[int, Narrowing]]

    @property
    def changed_rows(self) -> Iterable[int]:
        return [row for row, _ in self.by_row]

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        for row, narrowing in self.by_row:
            logits[row] = narrowing.narrowed(logits[row])


class Narrowings:
    """Dynamic temperature, `typical_p`, XTC, and samplers in another order: see `Narrowing`."""

    def wants(self, req: Req) -> bool:
        return narrows(req.sampling)

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        return _Narrowed(
            [(row, Narrowing.at(point.req.sampling, point.position)) for row, point in points]
        )
