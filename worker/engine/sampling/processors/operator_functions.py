"""What functions of the operator's file say of requests that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared.errors import ProcessorFault
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.request.token_functions import Wish
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary
from worker.engine.sampling.processors.token_rules import Allowed, TokenBias

_NOTHING = Wish(np.zeros(0, np.int64), None)


@dataclass(frozen=True, slots=True)
class _Wishes:
    added: TokenBias
    allowed: Allowed

    @property
    def changed_rows(self) -> Iterable[int]:
        return [*self.added.changed_rows, *self.allowed.changed_rows]

    def apply(self, logits: torch.Tensor, place: LogitPlace) -> None:
        self.added.apply(logits, place)
        self.allowed.apply(logits, place)


class OperatorFunctions:
    """`logits_processors`. Of a request whose function fails, no token is left to choose."""

    def wants(self, req: Req) -> bool:
        return bool(req.functions)

    def change(self, points: Sequence[RowPoint], vocabulary: Vocabulary) -> LogitChange | None:
        added: list[tuple[int, Wish]] = []
        allowed: list[tuple[int, torch.Tensor]] = []
        for row, point in points:
            for wish in _wishes(point, vocabulary.size):
                if wish.values is None:
                    allowed.append((row, torch.from_numpy(wish.token_ids)))
                elif len(wish.token_ids):
                    added.append((row, wish))
        if not added and not allowed:
            return None
        return _Wishes(_bias(added), Allowed(allowed))


def _wishes(point: SamplePoint, vocab_size: int) -> list[Wish]:
    req = point.req
    output_ids = (*req.token_ids[req.num_prompt_tokens :], *point.draft_ids)
    try:
        wishes = [each.wish(req.prompt_ids, output_ids, vocab_size) for each in req.functions]
    except ProcessorFault as exc:
        req.fault = str(exc)
        return [_NOTHING]
    return [wish for wish in wishes if wish is not None]


def _bias(added: list[tuple[int, Wish]]) -> TokenBias:
    rows = [np.full(len(wish.token_ids), row, np.int64) for row, wish in added]
    ids = [wish.token_ids for _, wish in added]
    values = [wish.values for _, wish in added if wish.values is not None]
    return TokenBias(
        torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *rows])),
        torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *ids])),
        torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *values])),
    )
