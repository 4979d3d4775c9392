"""Mamba 2's layers, as hybrids have them."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.state_layer import ScannedRows
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps, activate, softplus
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.recurrent_config import MambaConfig
from worker.engine.models.recurrent.selective_scan import selective_scan
from worker.engine.models.recurrent.short_convolution import ShortConvolution


class MambaMixer:
    """Joins a token with the last ones by a convolution, with all by matrices that it changes."""

    def __init__(
        self,
        config: MambaConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size = config.hidden_size

        def read(name: str, *shape: int) -> torch.Tensor:
            return weights.reader.read(prefix + name, *shape)

        self._config = config
        self._state_id = state_id
        self._in = ops.projection(
            *weights.projection(
                prefix, {"in_proj": config.projection_size}, size, has_bias=config.has_in_bias
            )
        )
        self._convolution = ShortConvolution(
            read("conv1d.weight", config.num_channels, 1, config.kernel_size),
            read("conv1d.bias", config.num_channels) if config.has_conv_bias else None,
        )
        self._time_bias = read("dt_bias", config.num_heads).float()
        self._rates = -torch.exp(read("A_log", config.num_heads).float())[:, None, None]
        self._skip = read("D", config.num_heads).float()[:, None]
        self._norm: torch.Tensor | None = None
        if config.norm != "none":
            self._norm = read("norm.weight", config.num_values).float()
        self._out = ops.projection(
            *weights.projection(
                prefix, {"out_proj": size}, config.num_values, has_bias=config.has_out_bias
            )
        )

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        states, config = batch.states, self._config
        assert states is not None, "the runner has a cache of them"
        past, matrices = states.layers[self._state_id]
        sizes = [config.num_values, config.num_channels, config.num_heads]
        gates, channels, times = torch.split(self._in(x), sizes, dim=-1)
        joined = activate(self._convolution.forward(channels, past, states), "silu")
        output = self._scan(joined, self._times(times), states.scanned(matrices))
        return self._out(self._gated(output.flatten(1), gates).to(x.dtype))

    def _times(self, times: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads] float32: how far a token is from the one before it."""
        return softplus(times.float() + self._time_bias).clamp(*self._config.step_limits)

    def _scan(
        self,
        joined: torch.Tensor,  # [num_tokens, num_channels]
        times: torch.Tensor,
        rows: ScannedRows,
    ) -> torch.Tensor:
        """[num_tokens, num_heads, head_dim]."""
        config = self._config
        num_vector_values = config.num_groups * config.state_size
        sizes = [config.num_values, num_vector_values, num_vector_values]
        flat, writers, readers = torch.split(joined, sizes, dim=-1)
        values = flat.reshape(-1, config.num_heads, config.head_dim)
        output = selective_scan(
            rows,
            times[..., None],
            self._rates,
            values * times[..., None],
            self._by_head(writers),
            self._by_head(readers),
        )
        return output + values * self._skip

    def _by_head(self, vectors: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_groups * state_size] -> [num_tokens, num_heads, state_size]."""
        config = self._config
        grouped = vectors.reshape(-1, config.num_groups, config.state_size)
        return grouped.repeat_interleave(config.num_heads // config.num_groups, dim=1)

    def _gated(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """In float32, with the norm at its place."""
        factors = activate(gates.float(), "silu")
        if self._norm is None:
            return x * factors
        if self._config.norm == "gated":
            return self._normed(x * factors) * self._norm
        return self._normed(x) * self._norm * factors

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        """Each group of heads by itself."""
        grouped = x.reshape(len(x), self._config.num_groups, -1)
        eps = self._config.norm_eps
        return functional.rms_norm(grouped, grouped.shape[-1:], None, eps).flatten(1)
