"""Kimi Linear's layers of linear attention (KDA, arXiv 2510.26692)."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps, activate, sigmoid, softplus
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.gated_delta_scan import gated_delta_scan, of_length_one
from worker.engine.models.recurrent.recurrent_config import KimiDeltaConfig
from worker.engine.models.recurrent.short_convolution import ShortConvolution

_PARTS = ("q", "k", "v")


class KimiDeltaMixer:
    """A gated delta net whose matrices forget each value of a key at a rate of its own."""

    def __init__(
        self,
        config: KimiDeltaConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size, num_heads, head_dim = config.hidden_size, config.num_heads, config.head_dim
        num_values, kernel_size = config.num_values, config.kernel_size

        def read(name: str, *shape: int) -> torch.Tensor:
            return weights.reader.read(prefix + name, *shape)

        def projection(num_inputs: int, **sizes: int) -> Linear:
            modules = {f"{name}_proj": size for name, size in sizes.items()}
            return ops.projection(*weights.projection(prefix, modules, num_inputs))

        self._config = config
        self._state_id = state_id
        self._channels = projection(size, **dict.fromkeys(_PARTS, num_values))
        self._sizes = [head_dim, head_dim, num_heads]
        self._short = projection(size, f_a=head_dim, g_a=head_dim, b=num_heads)
        taps = [read(f"{part}_conv1d.weight", num_values, 1, kernel_size) for part in _PARTS]
        self._convolution = ShortConvolution(torch.cat(taps), None)
        self._times = projection(head_dim, f_b=num_values)
        self._time_bias = read("dt_bias", num_values).float()
        self._decay_rates = -torch.exp(read("A_log", 1, 1, num_heads, 1).float())[0]
        self._gates = projection(head_dim, g_b=num_values)
        self._norm = read("o_norm.weight", head_dim).float()
        self._out = projection(num_values, o=size)

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        states, config = batch.states, self._config
        assert states is not None, "the runner has a cache of them"
        past, matrices = states.layers[self._state_id]
        short_times, short_gates, rates = torch.split(self._short(x), self._sizes, dim=-1)
        joined = activate(self._convolution.forward(self._channels(x), past, states), "silu")
        queries, keys, values = (self._heads(part) for part in joined.chunk(3, dim=-1))
        times = softplus(self._times(short_times.contiguous()).float() + self._time_bias)
        output = gated_delta_scan(
            states.scanned(matrices),
            torch.exp(self._heads(times) * self._decay_rates),
            sigmoid(rates),
            of_length_one(queries) * config.head_dim**-0.5,
            of_length_one(keys),
            values,
        )
        normed = functional.rms_norm(output, output.shape[-1:], None, config.norm_eps) * self._norm
        gated = normed.flatten(1) * sigmoid(self._gates(short_gates.contiguous()))
        return self._out(gated.to(x.dtype))

    def _heads(self, flat: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_values] -> [num_tokens, num_heads, head_dim]."""
        return flat.reshape(-1, self._config.num_heads, self._config.head_dim)
