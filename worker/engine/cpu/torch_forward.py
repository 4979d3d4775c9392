"""A model in torch, over the attention backend of the CPU."""

from __future__ import annotations

import torch

from worker.engine.cpu.forward_batch import ForwardBatch
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.lora.lora_projection import LoraProjection
from worker.engine.lora.lora_weights import LoraWeights
from worker.engine.models.model import Model


class TorchForward:
    """Plans attention once a step, then runs the model."""

    def __init__(self, model: Model, attention: TorchAttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        self._attention.plan(batch)
        return self._model.hidden(batch, self._attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden).float()

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        return self._model.lora_projections(weights)
