"""What an adapter adds to one projection of a model, which may be several joined to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from worker.engine.layers.linear import Linear, Linears
from worker.engine.lora.lora_weights import LoraPair


class LoraSlice(NamedTuple):
    """Outputs [start, end) of a projection are one module's."""

    start: int
    end: int
    pair: LoraPair | None  # None: the adapter leaves it as it is


class _Up(NamedTuple):
    start: int  # of the outputs
    end: int
    rank_start: int  # of the inner values
    rank_end: int
    linear: Linear


class LoraProjection:
    """All modules of a projection read the same input: one product down, one for each up."""

    def __init__(self, slices: Sequence[LoraSlice], linears: Linears) -> None:
        downs: list[torch.Tensor] = []
        self._ups: list[_Up] = []
        rank = 0
        for start, end, pair in slices:
            if pair is not None:
                downs.append(pair.down)
                linear = linears.make(pair.up, None)
                self._ups.append(_Up(start, end, rank, rank + len(pair.down), linear))
                rank += len(pair.down)
        self._down = linears.make(torch.cat(downs), None)

    def add(self, x: torch.Tensor, rows: torch.Tensor, output: torch.Tensor) -> None:
        """x [num_tokens, in_features]; to `rows` of output [num_tokens, out_features]."""
        inner = self._down(x[rows])
        for start, end, rank_start, rank_end, up in self._ups:
            delta = up(inner[:, rank_start:rank_end].contiguous())
            output[:, start:end].index_add_(0, rows, delta.to(output.dtype))
