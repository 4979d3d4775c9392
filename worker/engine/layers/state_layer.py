"""What a recurrent layer keeps of a request, and how it is reached in a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class StateLayer:
    """The state of one request in one layer: tensors in float32, however the model is computed.

    Its size does not grow with the text. It is zeros before the first token.
    """

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_values(self) -> int:
        """Of one request."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def num_bytes(self) -> int:
        """Of one request."""
        return self.num_values * torch.float32.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class StepStates:
    """The states of a step's requests, in the order of its rows.

    A layer reads what lies before the first token of each, and leaves what lies behind its last.
    """

    slots: torch.Tensor  # [num_rows] int64, of the cache
    starts: tuple[int, ...]  # [num_rows], position of each row's first token in its text
    query_lens: tuple[int, ...]  # [num_rows], tokens of each in this step
    layers: Sequence[tuple[torch.Tensor, ...]]  # by recurrent layer; [num_slots, *shape] each
    # Made by the first layer that asks. By their number, where a row's last inputs lie:
    _past_places: dict[int, PastPlaces] = field(default_factory=dict)
    _scan_orders: list[ScanOrder] = field(default_factory=list)  # one, or none yet

    def past_places(self, num_past: int) -> PastPlaces:
        """For layers that see the last `num_past` inputs beside each token's own."""
        if num_past not in self._past_places:
            self._past_places[num_past] = PastPlaces.of(self.query_lens, num_past)
        return self._past_places[num_past]

    @property
    def scan_order(self) -> ScanOrder:
        """For layers that take one token after the other."""
        if not self._scan_orders:
            self._scan_orders.append(ScanOrder.of(self.query_lens))
        return self._scan_orders[0]


@dataclass(frozen=True, slots=True, eq=False)
class PastPlaces:
    """Indices into the past inputs of all rows, `num_past` each, and behind them the step's."""

    seen: torch.Tensor  # [num_past + 1, num_tokens] int64: of each token, the oldest first
    last: torch.Tensor  # [num_rows, num_past] int64: what is the past behind the step

    @classmethod
    def of(cls, query_lens: Sequence[int], num_past: int) -> PastPlaces:
        lens = torch.tensor(query_lens)
        token_starts = lens.cumsum(0) - lens
        rows = torch.arange(len(lens))
        num_stored = len(lens) * num_past

        def place(row: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            """Of an input; the first token of the step has offset 0."""
            stored = (row + 1) * num_past + offset
            return torch.where(offset < 0, stored, num_stored + token_starts[row] + offset)

        row_of_token = rows.repeat_interleave(lens)
        offsets = torch.arange(int(lens.sum())) - token_starts[row_of_token]
        back = torch.arange(-num_past, 1)[:, None]
        behind = lens[:, None] + torch.arange(-num_past, 0)
        return cls(
            place(row_of_token.expand(num_past + 1, -1), offsets + back),
            place(rows[:, None].expand(-1, num_past), behind),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ScanOrder:
    """A token of each row at a time, the longest rows first: those that go on stay ahead."""

    rows: torch.Tensor  # [num_rows] int64
    tokens: tuple[torch.Tensor, ...]  # by turn: int64, of the first rows, one each

    @classmethod
    def of(cls, query_lens: Sequence[int]) -> ScanOrder:
        lens = torch.tensor(query_lens)
        rows = lens.argsort(descending=True, stable=True)
        first_tokens = (lens.cumsum(0) - lens)[rows]
        nums_rows = [sum(length > turn for length in query_lens) for turn in range(max(query_lens))]
        return cls(
            rows, tuple(first_tokens[:num_rows] + turn for turn, num_rows in enumerate(nums_rows))
        )
