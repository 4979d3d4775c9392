"""Random weights in the place of a checkpoint's: for benchmarks, and to try a configuration."""

from __future__ import annotations

import math
import zlib

import torch

from worker.engine.models.loader import OnProgress

STD = 0.02
CPU = torch.device("cpu")


class DummyWeights:
    """A tensor for every name, the same in every process: normal(0, 0.02), norms around 1.

    Never zeros: products with zeros may take another time, and give nothing to compare.
    """

    def __init__(
        self,
        num_parameters: int,
        dtype: torch.dtype,
        on_progress: OnProgress,
        device: torch.device = CPU,
    ) -> None:
        self._num_parameters = num_parameters
        self._device = device  # where they are made: other numbers on another one
        self._num_made = 0
        self._dtype = dtype
        self._on_progress = on_progress

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self.read_as(self._dtype, name, *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        """In this dtype: other numbers than in another one."""
        tensor = fill_with_noise(name, torch.empty(shape, dtype=dtype, device=self._device))
        self._num_made += math.prod(shape)
        self._on_progress(min(1.0, self._num_made / self._num_parameters))
        return tensor

    def read_stored(self, name: str, *shape: int) -> torch.Tensor:
        return self.read_as(torch.float32, name, *shape)

    def has(self, name: str) -> bool:
        """Whatever it is. Of experts that may lie in one tensor, each has its own."""
        return ".experts." not in name

    def read_codes(self, name: str, *shape: int) -> None:
        """There are none: a configuration tells what is multiplied, not in what it is stored."""


def fill_parameters(model: torch.nn.Module, on_progress: OnProgress) -> None:
    """All of them, in place."""
    parameters = dict(model.named_parameters())
    for idx, (name, parameter) in enumerate(parameters.items(), start=1):
        fill_with_noise(name, parameter.data)
        on_progress(idx / len(parameters))


def fill_with_noise(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """In place; seeded by the name."""
    generator = torch.Generator(tensor.device).manual_seed(zlib.crc32(name.encode()))
    tensor.normal_(0.0, STD, generator=generator)
    is_norm = "norm" in name and name.endswith("weight")
    if tensor.ndim == 1 and (is_norm or name.endswith("layer_scalar")):
        tensor += 1.0
    return tensor
