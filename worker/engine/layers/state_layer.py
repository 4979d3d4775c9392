"""What a recurrent layer keeps of a request, and how it is reached in a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

Place = Callable[[torch.Tensor], torch.Tensor]  # a tensor of the host, where states are


@dataclass(frozen=True, slots=True)
class StateLayer:
    """The state of one request in one layer: tensors in float32, however the model is computed.

    Its size does not grow with the text. It is zeros before the first token.
    """

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_values(self) -> int:
        """The values of one request."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def num_bytes(self) -> int:
        """The bytes of one request."""
        return self.num_values * torch.float32.itemsize


class StateMark(NamedTuple):
    """A place in a step whose state is kept in a slot of its own."""

    row: int  # of the step
    num_tokens: int  # of that row in this step, up to there: at least one
    slot: int  # of the cache


class ScanKernels(Protocol):
    """Scans of a step by kernels: what gated_delta_scan.py and selective_scan.py compute in torch.

    All is on the device, in float32; `matrices` [num_slots, *shape] change.
    """

    def gated_delta(
        self,
        matrices: torch.Tensor,
        decays: torch.Tensor,
        rates: torch.Tensor,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor: ...

    def selective(
        self,
        matrices: torch.Tensor,
        times: torch.Tensor,
        rates: torch.Tensor,
        values: torch.Tensor,
        writers: torch.Tensor,
        readers: torch.Tensor,
    ) -> torch.Tensor: ...


def as_it_is(values: torch.Tensor) -> torch.Tensor:
    """The place of what stays on the host."""
    return values


@dataclass(frozen=True, slots=True, eq=False)
class StepStates:
    """The states of a step's requests, in the order of its rows.

    A layer reads what lies before the first token of each, and leaves what lies behind its last,
    and behind each mark.
    """

    slots: torch.Tensor  # [num_rows] int64, of the cache, where that is
    query_lens: tuple[int, ...]  # [num_rows], tokens of each in this step
    layers: Sequence[tuple[torch.Tensor, ...]]  # by recurrent layer; [num_slots, *shape] each
    marks: tuple[StateMark, ...] = ()
    place: Place = as_it_is
    kernels: ScanKernels | None = None  # None: scans are torch's
    # Made by the first layer that asks. By their number, where a row's last inputs lie:
    _past_places: dict[int, PastPlaces] = field(default_factory=dict)
    _scan_orders: list[ScanOrder] = field(default_factory=list)  # one, or none yet

    def past_places(self, num_past: int) -> PastPlaces:
        """The places for layers that see the last `num_past` inputs beside each token's own."""
        if num_past not in self._past_places:
            self._past_places[num_past] = PastPlaces.of(self, num_past)
        return self._past_places[num_past]

    def scanned(self, matrices: torch.Tensor) -> ScannedRows:
        """The states for layers that take one token after the other; `matrices` [num_slots,
        *shape].
        """
        if self.kernels is not None:
            return ScannedRows(matrices, self.slots, NO_ORDER, self.kernels)
        if not self._scan_orders:
            self._scan_orders.append(ScanOrder.of(self.query_lens, self.marks, self.place))
        order = self._scan_orders[0]
        return ScannedRows(matrices, self.slots[order.rows], order)


@dataclass(frozen=True, slots=True, eq=False)
class PastPlaces:
    """Indices into the past inputs of all rows, `num_past` each, and behind them the step's."""

    seen: torch.Tensor  # [num_past + 1, num_tokens] int64: of each token, the oldest first
    # What is the past behind the step, row by row, and behind each mark:
    kept: torch.Tensor  # [num_rows + num_marks, num_past] int64
    kept_slots: torch.Tensor  # [num_rows + num_marks] int64, of the cache

    @classmethod
    def of(cls, states: StepStates, num_past: int) -> PastPlaces:
        lens = torch.tensor(states.query_lens)
        token_starts = lens.cumsum(0) - lens
        rows = torch.arange(len(lens))
        num_stored = len(lens) * num_past

        def place(row: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            """The place of an input; the first token of the step has offset 0."""
            stored = (row + 1) * num_past + offset
            return torch.where(offset < 0, stored, num_stored + token_starts[row] + offset)

        row_of_token = rows.repeat_interleave(lens)
        offsets = torch.arange(int(lens.sum())) - token_starts[row_of_token]
        back = torch.arange(-num_past, 1)[:, None]
        marked_rows, marked_lens, marked_slots = _columns(states.marks)
        kept_rows = torch.cat([rows, marked_rows])
        behind = torch.cat([lens, marked_lens])[:, None] + torch.arange(-num_past, 0)
        kept_slots = states.slots
        if states.marks:
            kept_slots = torch.cat([kept_slots, states.place(marked_slots)])
        return cls(
            states.place(place(row_of_token.expand(num_past + 1, -1), offsets + back)),
            states.place(place(kept_rows[:, None].expand(-1, num_past), behind)),
            kept_slots,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ScanOrder:
    """A token of each row at a time, the longest rows first: those that go on stay ahead."""

    rows: torch.Tensor  # [num_rows] int64
    tokens: tuple[torch.Tensor, ...]  # by turn: int64, of the first rows, one each
    # Behind some turns: places among `rows` whose matrices are kept, and in which slots, int64 both
    marked: Mapping[int, tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(
        cls,
        query_lens: Sequence[int],
        marks: Sequence[StateMark] = (),
        place: Place = as_it_is,
    ) -> ScanOrder:
        lens = torch.tensor(query_lens)
        rows = lens.argsort(descending=True, stable=True)
        first_tokens = place((lens.cumsum(0) - lens)[rows])
        nums_rows = [sum(length > turn for length in query_lens) for turn in range(max(query_lens))]
        place_of_row = rows.argsort()
        by_turn: dict[int, list[StateMark]] = {}
        for mark in marks:
            by_turn.setdefault(mark.num_tokens - 1, []).append(mark)
        marked = {}
        for turn, some in by_turn.items():
            marked_rows, _, slots = _columns(some)
            marked[turn] = place(place_of_row[marked_rows]), place(slots)
        return cls(
            place(rows),
            tuple(first_tokens[:num_rows] + turn for turn, num_rows in enumerate(nums_rows)),
            marked,
        )


NO_ORDER = ScanOrder(torch.empty(0, dtype=torch.int64), (), {})


@dataclass(frozen=True, slots=True, eq=False)
class ScannedRows:
    """What a scan changes in one layer: a matrix, or several, of each row."""

    matrices: torch.Tensor  # [num_slots, *shape], of the cache
    slots: torch.Tensor  # [num_rows] int64, in the order of the scan
    order: ScanOrder
    kernels: ScanKernels | None = None  # set: they scan, and there are no turns

    def turns(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Tokens of a turn, and the matrices of their rows, to be changed in place.

        Whoever takes all turns leaves them in the cache, and those that are marked on the way.
        """
        rows = self.matrices[self.slots]
        for turn, tokens in enumerate(self.order.tokens):
            yield tokens, rows[: len(tokens)]
            if turn in self.order.marked:
                places, slots = self.order.marked[turn]
                self.matrices[slots] = rows[places]
        self.matrices[self.slots] = rows


def _columns(marks: Sequence[StateMark]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, numbers of tokens and slots: [num_marks] int64 each."""
    rows, nums_tokens, slots = torch.tensor(marks, dtype=torch.int64).reshape(-1, 3).T
    return rows, nums_tokens, slots
