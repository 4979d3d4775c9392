"""The MLP of a layer without experts."""

from __future__ import annotations

import torch

from worker.engine.models.decoder_weights import MlpWeights
from worker.engine.models.layer_config import MlpConfig
from worker.engine.models.layer_ops import LayerOps, mlp_activation
from worker.engine.models.lora_linear import LoraLinear
from worker.engine.models.model import ModelInput
from worker.engine.models.model_lora import DOWN, GATE_UP


class DenseMlp:
    """One projection up, gated or activated alone, and one down."""

    def __init__(
        self, config: MlpConfig, weights: MlpWeights, ops: LayerOps, layer_id: int
    ) -> None:
        self._config = config
        self._ops = ops
        self._gate_up = LoraLinear.of(weights.gate_up, ops, layer_id, GATE_UP)
        self._down = LoraLinear.of(weights.down, ops, layer_id, DOWN)
        self._curve = weights.curve

    def forward(self, x: torch.Tensor, batch: ModelInput) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        return self._down(self._activated(self._gate_up(x, batch)), batch)

    def _activated(self, gate_up: torch.Tensor) -> torch.Tensor:
        if self._curve is not None:
            return self._curve.of(gate_up)
        if self._config.is_plain:
            return self._ops.silu_mul(gate_up)
        return mlp_activation(self._config, gate_up)
