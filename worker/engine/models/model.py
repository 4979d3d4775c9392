"""The seam to a model: what every forward asks of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.lora.lora_projection import LoraProjection
from worker.engine.lora.lora_weights import LoraWeights
from worker.engine.models.model_input import ModelInput


class Model(Protocol):
    """A decoder with its weights, but without keys and values."""

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]:
        """What the attention backend computes for it, by layer id."""
        ...

    def hidden(self, batch: ModelInput, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size] in the model's dtype: what the last norm gives."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of any rows of it: [num_rows, hidden_size] -> [num_rows, vocab_size], in that dtype."""
        ...

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """An adapter's, by the names under which `hidden` looks for them. Raises ConfigError."""
        ...
