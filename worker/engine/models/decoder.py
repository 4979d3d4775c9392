"""A decoder of the Llama shape, with fused projections, over paged attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.linear import Linear
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights, LayerWeights
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.model_lora import (
    DOWN,
    GATE_UP,
    OUTPUT,
    QKV,
    decoder_projections,
    projection_name,
)


class DecoderModel:
    """Llama and its kind: one computation, told apart by the configuration.

    Reads its weights when it is made; afterwards nothing of it changes.
    """

    def __init__(self, config: DecoderConfig, checkpoint: WeightReader, ops: LayerOps) -> None:
        weights = DecoderWeights(config, checkpoint)
        self._config = config
        self._ops = ops
        self._attention_layers = config.attention_layers
        self._eps = config.rms_norm_eps
        self._embeddings = weights.embeddings()  # [vocab_size, hidden_size]
        self._layers = [
            DecoderLayer(config, weights.layer(layer_id), ops, layer_id)
            for layer_id in range(config.num_layers)
        ]
        self._norm = weights.norm()
        self._lm_head = ops.head(weights.lm_head(self._embeddings))

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]:
        return self._attention_layers

    def hidden(self, batch: ModelInput, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size], after the last norm."""
        residual = functional.embedding(batch.input_ids, self._embeddings)
        if self._config.embedding_scale != 1.0:
            residual = residual * self._config.embedding_scale
        delta = torch.zeros_like(residual)
        self._ops.begin(batch.positions)
        for layer in self._layers:
            delta, residual = layer.forward(delta, residual, batch, attention)
        return self._ops.add_rms_norm(delta, residual, self._norm, self._eps)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs], in the model's dtype."""
        logits = self._lm_head(hidden)
        if self._config.logits_divisor != 1.0:
            logits = logits / self._config.logits_divisor
        return logits

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        return decoder_projections(self._config, weights, self._ops.linears)


class DecoderLayer:
    """Attention and MLP. What each adds is given on, for the next norm to add."""

    def __init__(
        self, config: DecoderConfig, weights: LayerWeights, ops: LayerOps, layer_id: int
    ) -> None:
        self._ops = ops
        self._layer_id = layer_id
        self._lora_names = {
            name: projection_name(layer_id, name) for name in (QKV, OUTPUT, GATE_UP, DOWN)
        }
        self._eps = config.rms_norm_eps
        self._head_dim = config.head_dim
        self._attention_norm = weights.attention_norm
        self._qkv = ops.linears.make(*weights.qkv.dense())
        self._qk_norm = weights.qk_norm
        self._output = ops.linears.make(*weights.output.dense())
        self._mlp_norm = weights.mlp_norm
        self._gate_up = ops.linears.make(*weights.gate_up.dense())
        self._down = ops.linears.make(*weights.down.dense())

    def forward(
        self,
        delta: torch.Tensor,  # [num_tokens, hidden_size], of the layer before
        residual: torch.Tensor,  # the same shape: the sum without it
        batch: ModelInput,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ops, eps = self._ops, self._eps
        x, residual = ops.add_rms_norm(delta, residual, self._attention_norm, eps)
        qkv = self._project(self._qkv, QKV, x, batch)
        heads = qkv.view(len(qkv), -1, self._head_dim)  # queries, then keys, then values
        attended = ops.attend(heads, self._qk_norm, eps, self._layer_id, attention)
        delta = self._project(self._output, OUTPUT, attended, batch)
        x, residual = ops.add_rms_norm(delta, residual, self._mlp_norm, eps)
        activated = ops.silu_mul(self._project(self._gate_up, GATE_UP, x, batch))
        return self._project(self._down, DOWN, activated, batch), residual

    def _project(
        self, linear: Linear, name: str, x: torch.Tensor, batch: ModelInput
    ) -> torch.Tensor:
        output = linear(x)
        if batch.loras is not None:
            batch.loras.add(self._lora_names[name], x, output)
        return output
