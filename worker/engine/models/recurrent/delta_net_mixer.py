"""Layers of linear attention, as Qwen3-Next and Qwen 3.5 have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.models.decoder_weights import DecoderWeights, Projection
from worker.engine.models.layer_ops import LayerOps, activate, sigmoid, softplus
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.gated_delta_scan import gated_delta_scan, of_length_one
from worker.engine.models.recurrent.recurrent_config import DeltaNetConfig
from worker.engine.models.recurrent.short_convolution import ShortConvolution


class InnerProjections(NamedTuple):
    """From the layer's input."""

    channels: Projection  # to queries, then keys, then values
    gates: Projection
    rates: Projection
    times: Projection


class DeltaNetMixer:
    """Joins a token with the last ones by a convolution, with all by matrices that it corrects."""

    def __init__(
        self,
        config: DeltaNetConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size, num_heads = config.hidden_size, config.num_value_heads

        def read(name: str, *shape: int) -> torch.Tensor:
            return weights.reader.read(prefix + name, *shape)

        self._config = config
        self._state_id = state_id
        inner = inner_projections(config, partial(weights.projection, prefix))
        self._channels, self._gates, self._rates, self._times = (
            ops.projection(*each) for each in inner
        )
        self._convolution = ShortConvolution(_taps(config, read), None)
        self._time_bias = read("dt_bias", num_heads).float()
        self._decay_rates = -torch.exp(read("A_log", num_heads).float())
        self._norm = read("norm.weight", config.value_dim).float()
        self._out = ops.projection(
            *weights.projection(prefix, {"out_proj": size}, config.num_values)
        )

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        states = batch.states
        assert states is not None, "the runner has a cache of them"
        past, matrices = states.layers[self._state_id]
        channels = self._convolution.forward(self._channels(x), past, states)
        queries, keys, values = self._heads(activate(channels, "silu"))
        times = softplus(self._times(x).float() + self._time_bias)
        decays = torch.exp(times * self._decay_rates)
        rates = sigmoid(self._rates(x)) * self._config.max_rate
        rows = states.scanned(matrices)
        output = gated_delta_scan(rows, decays[..., None], rates, queries, keys, values)
        return self._out(self._gated_norm(output, self._gates(x)).to(x.dtype))

    def _heads(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, [num_tokens, num_value_heads, ...] each."""
        config = self._config
        sizes = [config.num_keys, config.num_keys, config.num_values]
        flat_queries, flat_keys, flat_values = torch.split(joined, sizes, dim=-1)
        queries, keys = (self._of_length_one(each) for each in (flat_queries, flat_keys))
        values = flat_values.reshape(-1, config.num_value_heads, config.value_dim)
        return queries * config.key_dim**-0.5, keys, values

    def _of_length_one(self, flat: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_keys] -> [num_tokens, num_value_heads, key_dim]."""
        config = self._config
        heads = flat.reshape(-1, config.num_key_heads, config.key_dim)
        num_shares = config.num_value_heads // config.num_key_heads
        return of_length_one(heads).repeat_interleave(num_shares, dim=1)

    def _gated_norm(self, heads: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Each head by itself, in float32: [num_tokens, num_values]."""
        eps = self._config.norm_eps
        normed = functional.rms_norm(heads, heads.shape[-1:], None, eps) * self._norm
        return normed.flatten(1) * activate(gates.float(), "silu")


def _taps(config: DeltaNetConfig, read: Callable[..., torch.Tensor]) -> torch.Tensor:
    """[num_channels, 1, kernel_size]."""
    if config.stored != "apart":
        return read("conv1d.weight", config.num_channels, 1, config.kernel_size)
    sizes = {"q": config.num_keys, "k": config.num_keys, "v": config.num_values}
    return torch.cat(
        [read(f"{name}_conv1d.weight", each, 1, config.kernel_size) for name, each in sizes.items()]
    )


def inner_projections(
    config: DeltaNetConfig, read: Callable[[dict[str, int], int], Projection]
) -> InnerProjections:
    """Reads them by `read`, as `DecoderWeights.projection` does of one layer."""
    num_values, num_heads, size = config.num_values, config.num_value_heads, config.hidden_size
    num_keys = config.num_keys
    if config.stored == "apart":
        return InnerProjections(
            read({"q_proj": num_keys, "k_proj": num_keys, "v_proj": num_values}, size),
            read({"g_proj": num_values}, size),
            read({"b_proj": num_heads}, size),
            read({"a_proj": num_heads}, size),
        )
    if config.stored == "joined":
        return InnerProjections(
            read({"in_proj_qkv": config.num_channels}, size),
            read({"in_proj_z": num_values}, size),
            read({"in_proj_b": num_heads}, size),
            read({"in_proj_a": num_heads}, size),
        )
    num_groups = config.num_key_heads
    key_dim, values_dim, num_shares = (
        each // num_groups for each in (num_keys, num_values, num_heads)
    )
    joined = read({"in_proj_qkvz": config.num_channels + num_values}, size)
    rows = torch.arange(config.num_channels + num_values).view(num_groups, -1)
    by_part = torch.split(rows, [key_dim, key_dim, values_dim, values_dim], dim=1)
    queries, keys, values, gates = (part.flatten() for part in by_part)
    pairs = read({"in_proj_ba": 2 * num_heads}, size)
    by_head = torch.arange(2 * num_heads).view(num_groups, -1)
    rates, times = torch.split(by_head, num_shares, dim=1)
    return InnerProjections(
        joined.with_rows(torch.cat([queries, keys, values])),
        joined.with_rows(gates),
        pairs.with_rows(rates.flatten()),
        pairs.with_rows(times.flatten()),
    )
