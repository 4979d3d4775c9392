"""Mamba 1's layers."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps, activate, softplus
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.recurrent_config import ChannelMambaConfig
from worker.engine.models.recurrent.selective_scan import selective_scan
from worker.engine.models.recurrent.short_convolution import ShortConvolution


class ChannelMambaMixer:
    """Joins a token with the last ones by a convolution, with all by a vector of each channel."""

    def __init__(
        self,
        config: ChannelMambaConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size, num_channels = config.hidden_size, config.num_channels
        rank, state_size = config.rank, config.state_size

        def read(name: str, *shape: int) -> torch.Tensor:
            return weights.reader.read(prefix + name, *shape)

        def projection(
            name: str, num_outputs: int, num_inputs: int, *, has_bias: bool = False
        ) -> Linear:
            sizes = {name: num_outputs}
            return ops.projection(*weights.projection(prefix, sizes, num_inputs, has_bias=has_bias))

        has_bias = config.has_projection_bias
        self._config = config
        self._state_id = state_id
        self._in = projection("in_proj", 2 * num_channels, size, has_bias=has_bias)
        self._convolution = ShortConvolution(
            read("conv1d.weight", num_channels, 1, config.kernel_size),
            read("conv1d.bias", num_channels) if config.has_conv_bias else None,
        )
        self._inner = projection("x_proj", rank + 2 * state_size, num_channels)
        self._inner_sizes = [rank, state_size, state_size]
        self._norms: list[torch.Tensor | None] = [None] * len(self._inner_sizes)
        if config.norm == "weighted":
            self._norms = [
                read(f"{name}_layernorm.weight", length).float()
                for name, length in zip(("dt", "b", "c"), self._inner_sizes, strict=True)
            ]
        self._times = projection("dt_proj", num_channels, rank)
        self._time_bias = read("dt_proj.bias", num_channels).float()
        self._rates = -torch.exp(read("A_log", num_channels, state_size).float())
        self._skip = read("D", num_channels).float()
        self._out = projection("out_proj", size, num_channels, has_bias=has_bias)

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        states = batch.states
        assert states is not None, "the runner has a cache of them"
        past, matrices = states.layers[self._state_id]
        channels, gates = self._in(x).chunk(2, dim=-1)
        values = activate(self._convolution.forward(channels, past, states), "silu")
        short_times, writers, readers = self._normed(self._inner(values.to(x.dtype)))
        times = softplus(self._times(short_times.to(x.dtype)).float() + self._time_bias)
        output = selective_scan(
            states.scanned(matrices),
            times[:, None],
            self._rates,
            (values * times)[:, None],
            writers[:, None],
            readers[:, None],
        )
        gated = (output[:, 0] + values * self._skip) * activate(gates.float(), "silu")
        return self._out(gated.to(x.dtype))

    def _normed(self, inner: torch.Tensor) -> list[torch.Tensor]:
        """What times are made of, then vectors to write by and to read by, in float32."""
        parts = list(torch.split(inner.float(), self._inner_sizes, dim=-1))
        if self._config.norm == "none":
            return parts
        eps = self._config.norm_eps
        return [
            functional.rms_norm(part, part.shape[-1:], weight, eps)
            for part, weight in zip(parts, self._norms, strict=True)
        ]
