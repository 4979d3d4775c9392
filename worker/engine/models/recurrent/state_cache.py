"""The memory of recurrent state, in slots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from worker.engine.layers.state_layer import (
    Place,
    ScanKernels,
    StateLayer,
    StateMark,
    StepStates,
    as_it_is,
)
from worker.engine.request.schedule_batch import ScheduleBatch, StateCopy

Allocate = Callable[[Sequence[int], torch.dtype], torch.Tensor]  # zeros of a shape
# For the slots of a step's rows, the tokens of each, and marks.
MakeScans = Callable[[torch.Tensor, Sequence[int], Sequence[StateMark], Place], ScanKernels]


class StatePlan(NamedTuple):
    """What a step does with states, as the host knows it."""

    rows: Sequence[int]  # their slots, in the order of the step
    query_lens: Sequence[int]  # tokens of each in this step
    begun: Sequence[int] = ()  # rows whose requests begin
    restored: Sequence[tuple[int, int]] = ()  # a row, and the slot that is copied into its own
    marks: Sequence[StateMark] = ()


class StateCache:
    """A slot for each request that runs, the number of its row, which the ledger gives and takes;
    behind these the slots of snapshots, which it gives to page borders.

    A slot holds the state behind the first `num_tokens` tokens of whoever has the row. When a
    request begins it is wiped, or a snapshot is copied into it; one that was retracted begins anew.
    """

    def __init__(
        self,
        layers: Sequence[StateLayer],
        num_rows: int,
        num_snapshots: int,
        allocate: Allocate,
        place: Place = as_it_is,
        make_scans: MakeScans | None = None,  # None: scans are torch's
    ) -> None:
        num_slots = num_rows + num_snapshots
        self._num_rows = num_rows
        self._place = place
        self._make_scans = make_scans
        self.layers = [
            tuple(allocate((num_slots, *shape), torch.float32) for shape in layer.shapes)
            for layer in layers
        ]
        self._num_tokens = [0] * num_slots

    @property
    def num_bytes(self) -> int:
        return sum(state.nbytes for state in itertools.chain(*self.layers))

    def plan(self, batch: ScheduleBatch) -> StatePlan:
        """Steps are computed in the order in which they are planned."""
        restored = [(copy.row, self._num_rows + copy.snapshot) for copy in batch.copies.restored]
        for copy, (row, slot) in zip(batch.copies.restored, restored, strict=True):
            assert self._num_tokens[slot] == copy.num_tokens, "a snapshot of another border"
            self._num_tokens[row] = copy.num_tokens
        places: dict[int, tuple[int, int]] = {}  # of each row, which it is, and where it begins
        begun = []
        for idx, entry in enumerate(batch.entries):
            row = entry.req.row
            if entry.start == 0:
                begun.append(row)
                self._num_tokens[row] = 0
            assert self._num_tokens[row] == entry.start, "a step goes on where the last one ended"
            self._num_tokens[row] = entry.end
            places[row] = idx, entry.start
        query_lens = [entry.num_tokens for entry in batch.entries]
        marks = self._marks(batch.copies.kept, places)
        return StatePlan(list(places), query_lens, begun, restored, marks)

    def prepare(self, plan: StatePlan) -> None:
        """What comes before the step."""
        for row, slot in plan.restored:
            for state in itertools.chain(*self.layers):
                state[row] = state[slot]
        if plan.begun:
            rows = self._place(torch.tensor(plan.begun))
            for state in itertools.chain(*self.layers):
                state.index_fill_(0, rows, 0.0)

    def states(self, plan: StatePlan) -> StepStates:
        """As the model reads and changes them."""
        return self._states(self._place(torch.tensor(plan.rows)), plan.query_lens, plan.marks)

    def decoding(self, slots: torch.Tensor) -> StepStates:
        """The states of steps of one token a row, whose slots come to lie in `slots` [num_rows]
        int64. What is kept behind them is copied by `keep_marked`.
        """
        return self._states(slots, [1] * len(slots))

    def keep_marked(self, plan: StatePlan) -> None:
        """What comes behind a step of one token a row that knew no marks."""
        for mark in plan.marks:
            for state in itertools.chain(*self.layers):
                state[mark.slot] = state[plan.rows[mark.row]]

    def _states(
        self, slots: torch.Tensor, query_lens: Sequence[int], marks: Sequence[StateMark] = ()
    ) -> StepStates:
        kernels = None
        if self._make_scans is not None:
            kernels = self._make_scans(slots, query_lens, marks, self._place)
        return StepStates(slots, tuple(query_lens), self.layers, tuple(marks), self._place, kernels)

    def _marks(
        self, kept: Sequence[StateCopy], places: dict[int, tuple[int, int]]
    ) -> list[StateMark]:
        marks = []
        for copy in kept:
            place, start = places[copy.row]
            slot = self._num_rows + copy.snapshot
            self._num_tokens[slot] = copy.num_tokens
            marks.append(StateMark(place, copy.num_tokens - start, slot))
        return marks
