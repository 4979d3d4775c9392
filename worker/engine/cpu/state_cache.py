"""The memory of recurrent state, in slots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from worker.engine.layers.state_layer import StateLayer, StepStates
from worker.engine.request.schedule_batch import ScheduleBatch


class StateCache:
    """A slot for each request that runs: the number of its row, which the ledger gives and takes.

    A slot holds the state behind the first `num_tokens` tokens of whoever has the row. It is wiped
    when a request begins; a request that was retracted begins anew.
    """

    def __init__(self, layers: Sequence[StateLayer], num_slots: int) -> None:
        self._layers = [
            tuple(torch.zeros(num_slots, *shape) for shape in layer.shapes) for layer in layers
        ]
        self._num_tokens = [0] * num_slots

    def step(self, batch: ScheduleBatch) -> StepStates:
        """Of a step that is computed now."""
        rows = [entry.req.row for entry in batch.entries]
        self._wipe([entry.req.row for entry in batch.entries if entry.start == 0])
        for row, entry in zip(rows, batch.entries, strict=True):
            assert self._num_tokens[row] == entry.start, "a step goes on where the last one ended"
            self._num_tokens[row] = entry.end
        return StepStates(
            torch.tensor(rows),
            tuple(entry.start for entry in batch.entries),
            tuple(entry.num_tokens for entry in batch.entries),
            self._layers,
        )

    def _wipe(self, rows: Sequence[int]) -> None:
        """For requests that begin."""
        for row in rows:
            self._num_tokens[row] = 0
        for state in itertools.chain(*self._layers) if rows else ():
            state[rows] = 0.0
