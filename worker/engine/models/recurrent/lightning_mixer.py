"""MiniMax's layers of linear attention (lightning attention, arXiv 2501.08313)."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linears
from worker.engine.models.layer_ops import activate, sigmoid
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.recurrent_config import LightningConfig
from worker.engine.models.recurrent.selective_scan import selective_scan

_NORM_EPS = 1e-6  # whatever the model's other norms have


class LightningMixer:
    """Joins a token with all before it by matrices, to which it adds its values by its keys."""

    def __init__(
        self,
        config: LightningConfig,
        reader: WeightReader,
        prefix: str,  # of the names of its tensors
        linears: Linears,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size, num_values = config.hidden_size, config.num_values

        def read(name: str, *shape: int) -> torch.Tensor:
            return reader.read(f"{prefix}{name}.weight", *shape)

        self._config = config
        self._state_id = state_id
        self._in = linears.make(read("qkv_proj", 3 * num_values, size), None)
        self._gates = linears.make(read("output_gate", num_values, size), None)
        heads = torch.arange(1, config.num_heads + 1)
        slopes = 2.0 ** (-8.0 / config.num_heads * heads) * config.slope_scale
        self._norm = read("norm", num_values).float()
        self._rates = -slopes[:, None, None].to(self._norm.device)
        self._out = linears.make(read("out_proj", size, num_values), None)

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
