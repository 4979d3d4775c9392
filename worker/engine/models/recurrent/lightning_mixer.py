"""MiniMax's layers of linear attention (lightning attention, arXiv 2501.08313)."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps, activate, sigmoid
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.recurrent_config import LightningConfig
from worker.engine.models.recurrent.selective_scan import selective_scan

_NORM_EPS = 1e-6  # whatever the model's other norms have


class LightningMixer:
    """Joins a token with all before it by matrices, to which it adds its values by its keys."""

    def __init__(
        self,
        config: LightningConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size, num_values = config.hidden_size, config.num_values

        def projection(name: str, num_outputs: int, num_inputs: int) -> Linear:
            return ops.projection(*weights.projection(prefix, {name: num_outputs}, num_inputs))

        self._config = config
        self._state_id = state_id
        self._in = projection("qkv_proj", 3 * num_values, size)
        self._gates = projection("output_gate", num_values, size)
        heads = torch.arange(1, config.num_heads + 1)
        slopes = 2.0 ** (-8.0 / config.num_heads * heads) * config.slope_scale
        self._norm = weights.reader.read(f"{prefix}norm.weight", num_values).float()
        self._rates = -slopes[:, None, None].to(self._norm.device)
        self._out = projection("out_proj", size, num_values)

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        states, config = batch.states, self._config
        assert states is not None, "the runner has a cache of them"
        (matrices,) = states.layers[self._state_id]
        by_head = activate(self._in(x).float(), "silu").view(len(x), config.num_heads, -1)
        queries, keys, values = by_head.chunk(3, dim=-1)
        times = torch.ones(len(x), 1, 1, device=x.device)
        rows = states.scanned(matrices)
        output = selective_scan(rows, times, self._rates, values, keys, queries).flatten(1)
        normed = functional.rms_norm(output, output.shape[-1:], self._norm, _NORM_EPS)
        return self._out((normed * sigmoid(self._gates(x))).to(x.dtype))
