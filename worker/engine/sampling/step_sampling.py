"""What the sample points of each step ask for."""

from __future__ import annotations

from collections.abc import Sequence

from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.request.sample_point import SamplePoint
from worker.engine.sampling.row_params import RowParams
from worker.engine.sampling.sampling_batch import SamplingBatch


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
