"""The matrices of an adapter, and what they add to one projection of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import torch
from safetensors.torch import load

from shared.checkpoint.lora_files import LoraFiles, module_of
from worker.engine.layers.linear import Linear, Linears


class LoraPair(NamedTuple):
    """What is added to a linear layer: x -> x @ down.T @ up.T."""

    down: torch.Tensor  # [rank, in_features]
    up: torch.Tensor  # [out_features, rank], scaled


LoraWeights = dict[str, LoraPair]  # by the module's name in the checkpoint


def read_lora_weights(path: Path, dtype: torch.dtype, max_rank: int) -> LoraWeights:
    """Raises ConfigError."""
    files = LoraFiles.read(path)
    files.check_rank(max_rank)
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load(files.weights).items():
        module, side = module_of(name)
        sides.setdefault(module, {})[side] = tensor.float()
    return {
        module: LoraPair(pair["A"].to(dtype), (pair["B"] * files.scale).to(dtype))
        for module, pair in sides.items()
    }


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


class PackedProjections(Protocol):
    """All projections of an adapter in the layout of a model's own library, freed with it."""

    @property
    def address(self) -> int:
        """Where the library finds them."""
        ...


# By the model's own name of a projection, or for a library that adds them itself.
LoraProjections: TypeAlias = Mapping[str, LoraProjection] | PackedProjections
