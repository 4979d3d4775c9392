"""How one step after the other is to choose its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.request.schedule_batch import SamplePoint
from worker.engine.sampling.logits_processor import LogitChange, LogitPlace, Vocabulary
from worker.engine.sampling.row_params import RowParams


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to choose one token for each row of logits. Host memory; numpy where rows are few."""

    params: RowParams
    positions: list[int]  # [num_rows], of the token to be chosen, prompt included
    changes: Sequence[LogitChange]  # of the logits before that, in this order

    @property
    def changed_rows(self) -> list[int]:
        """Rows whose logits something changes before a token is chosen."""
        return sorted({row for change in self.changes for row in change.changed_rows})

    def change(self, logits: torch.Tensor, place: LogitPlace) -> None:
        """`logits` [num_rows, vocab_size] float32, at `place`, changed where they are."""
        for change in self.changes:
            change.apply(logits, place)

    @classmethod
    def from_points(
        cls,
        points: Sequence[SamplePoint],
        vocab_size: int,
        grammars: GrammarBackend | None = None,
        params: RowParams | None = None,
    ) -> SamplingBatch:
        """`grammars` made the matchers of those requests that have one; `params`, when given, are
        those of the points' requests.
        """
        params = params or RowParams.of([point.req for point in points])
        vocabulary = Vocabulary(vocab_size, grammars)
        changes = [
            processor.change([(row, points[row]) for row in rows], vocabulary)
            for processor, rows in params.wanted_rows
        ]
        return cls(
            params=params,
            positions=[point.position for point in points],
            changes=[change for change in changes if change is not None],
        )


class StepSampling:
    """Makes the `SamplingBatch` of one step after the other.

    It keeps what the requests of the last step ask for: mostly the next step has the same ones.
    """

    def __init__(self, num_outputs: int, grammars: GrammarBackend | None = None) -> None:
        """`num_outputs` of the model's head: the tokens to choose from."""
        self._num_outputs = num_outputs
        self._grammars = grammars
        self._row_params = RowParams.of([])

    def batch(self, points: Sequence[SamplePoint]) -> SamplingBatch:
        reqs = [point.req for point in points]
        if reqs != self._row_params.reqs:
            self._row_params = RowParams.of(reqs, self._row_params)
        return SamplingBatch.from_points(
            points, self._num_outputs, self._grammars, self._row_params
        )
