"""What functions of the operator's file say of requests that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared.errors import ProcessorFault
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.request.token_functions import FunctionAnswer
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, RowPoint, Vocabulary
from worker.engine.sampling.processors.token_rules import Allowed, TokenBias

_NOTHING = FunctionAnswer(np.zeros(0, np.int64), None)


@dataclass(frozen=True, slots=True)
class _Applied:
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
        added: list[tuple[int, FunctionAnswer]] = []
        allowed: list[tuple[int, torch.Tensor]] = []
        for row, point in points:
            for answer in _answers(point, vocabulary.size):
                if answer.values is None:
                    allowed.append((row, torch.from_numpy(answer.token_ids)))
                elif len(answer.token_ids):
                    added.append((row, answer))
        if not added and not allowed:
            return None
        return _Applied(_bias(added), Allowed(allowed))


def _answers(point: SamplePoint, vocab_size: int) -> list[FunctionAnswer]:
    req = point.req
    output_ids = (*req.token_ids[req.num_prompt_tokens :], *point.draft_ids)
    try:
        answers = [each.ask(req.prompt_ids, output_ids, vocab_size) for each in req.functions]
    except ProcessorFault as exc:
        req.fault = str(exc)
        return [_NOTHING]
    return [answer for answer in answers if answer is not None]


def _bias(added: list[tuple[int, FunctionAnswer]]) -> TokenBias:
    rows = [np.full(len(answer.token_ids), row, np.int64) for row, answer in added]
    ids = [answer.token_ids for _, answer in added]
    values = [answer.values for _, answer in added if answer.values is not None]
    return TokenBias(
        torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *rows])),
        torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *ids])),
        torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *values])),
    )
