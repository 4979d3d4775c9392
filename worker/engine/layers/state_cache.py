"""The memory of recurrent state, in slots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from worker.engine.cpu.cache_memory import CacheMemory
from worker.engine.layers.state_layer import StateLayer, StateMark, StepStates
from worker.engine.request.schedule_batch import ScheduleBatch, StateCopy


class StateCache:
    """A slot for each request that runs, the number of its row, which the ledger gives and takes;
    behind these the slots of snapshots, which it gives to page borders.

    A slot holds the state behind the first `num_tokens` tokens of whoever has the row. When a
    request begins it is wiped, or a snapshot is copied into it; one that was retracted begins anew.
    """

    def __init__(self, layers: Sequence[StateLayer], num_rows: int, num_snapshots: int = 0) -> None:
        num_slots = num_rows + num_snapshots
        self._num_rows = num_rows
        self._memory = CacheMemory()
        self._layers = [
            tuple(
                self._memory.allocate((num_slots, *shape), torch.float32) for shape in layer.shapes
            )
            for layer in layers
        ]
        self._num_tokens = [0] * num_slots

    def release(self) -> None:
        """Its memory, until it is written again. No request may run, no snapshot be kept."""
        self._memory.release()

    def step(self, batch: ScheduleBatch) -> StepStates:
        """The states of a step that is computed now."""
        for copy in batch.copies.restored:
            self._restore(copy)
        rows = [entry.req.row for entry in batch.entries]
        self._wipe([entry.req.row for entry in batch.entries if entry.start == 0])
        for row, entry in zip(rows, batch.entries, strict=True):
            assert self._num_tokens[row] == entry.start, "a step goes on where the last one ended"
            self._num_tokens[row] = entry.end
        starts = tuple(entry.start for entry in batch.entries)
        return StepStates(
            torch.tensor(rows),
            starts,
            tuple(entry.num_tokens for entry in batch.entries),
            self._layers,
            self._marks(batch.copies.kept, dict(zip(rows, enumerate(starts), strict=True))),
        )

    def _restore(self, copy: StateCopy) -> None:
        slot = self._num_rows + copy.snapshot
        assert self._num_tokens[slot] == copy.num_tokens, "a snapshot of another border"
        self._num_tokens[copy.row] = copy.num_tokens
        for state in itertools.chain(*self._layers):
            state[copy.row] = state[slot]

    def _marks(
        self, kept: Sequence[StateCopy], places: dict[int, tuple[int, int]]
    ) -> tuple[StateMark, ...]:
        """`places`: of each row, which of the step it is, and where it begins."""
        marks = []
        for copy in kept:
            place, start = places[copy.row]
            slot = self._num_rows + copy.snapshot
            self._num_tokens[slot] = copy.num_tokens
            marks.append(StateMark(place, copy.num_tokens - start, slot))
        return tuple(marks)

    def _wipe(self, rows: Sequence[int]) -> None:
        """Wipes the slots of requests that begin."""
        for row in rows:
            self._num_tokens[row] = 0
        for state in itertools.chain(*self._layers) if rows else ():
            state[rows] = 0.0
