"""Reads projections with the factors of what they are given, and of what they give."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.engine.models.decoder_config import WeightScale
from worker.engine.models.loader import WeightReader


class ScalingReader:
    """A `WeightReader`. What it multiplies is rounded once more."""

    def __init__(self, reader: WeightReader, scales: Sequence[WeightScale]) -> None:
        self._reader = reader
        self._scales = scales

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._scaled(name, self._reader.read(name, *shape))

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._scaled(name, self._reader.read_as(dtype, name, *shape))

    def has(self, name: str) -> bool:
        return self._reader.has(name)

    def _scaled(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        for scale in self._scales:
            if module.endswith(scale.module):
                return _scaled(tensor, scale, is_weight=kind == "weight")
        return tensor


def _scaled(tensor: torch.Tensor, scale: WeightScale, *, is_weight: bool) -> torch.Tensor:
    """A weight [out_features, in_features], or a bias [out_features]."""
    factors = torch.ones(len(tensor), device=tensor.device)
    if scale.outputs:
        parts = [torch.full((num,), factor) for num, factor in scale.outputs]
        factors = torch.cat(parts).to(tensor.device)
    if is_weight:
        factors = (factors * scale.input).unsqueeze(-1)
    return (tensor.float() * factors).to(tensor.dtype)
