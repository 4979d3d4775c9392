"""Linear layers that adapters may add to."""

from __future__ import annotations

from typing import Self

import torch

from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.model import ModelInput
from worker.engine.models.model_lora import projection_name


class LoraLinear:
    """A projection, and what the adapters of a step add to it."""

    def __init__(self, linear: Linear, name: str) -> None:
        self._linear = linear
        self._name = name  # by which adapters know it

    @classmethod
    def of(cls, weights: Projection, ops: LayerOps, layer_id: int, projection: str) -> Self:
        return cls(ops.projection(*weights), projection_name(layer_id, projection))

    def __call__(self, x: torch.Tensor, batch: ModelInput) -> torch.Tensor:
        output = self._linear(x)
        if batch.loras is not None:
            batch.loras.add(self._name, x, output)
        return output
