"""Layers of linear attention, as Qwen3-Next and Qwen 3.5 have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linears
from worker.engine.models.layer_ops import activate, sigmoid, softplus
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.gated_delta_scan import gated_delta_scan, of_length_one
from worker.engine.models.recurrent.recurrent_config import DeltaNetConfig
from worker.engine.models.recurrent.short_convolution import ShortConvolution


class InnerWeights(NamedTuple):
    """[out_features, hidden_size] each."""

    channels: torch.Tensor  # queries, then keys, then values
    gates: torch.Tensor
    rates: torch.Tensor
    times: torch.Tensor


class DeltaNetMixer:
    """Joins a token with the last ones by a convolution, with all by matrices that it corrects."""

    def __init__(
        self,
        config: DeltaNetConfig,
        reader: WeightReader,
        prefix: str,  # of the names of its tensors
        linears: Linears,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size, num_heads = config.hidden_size, config.num_value_heads

        def read(name: str, *shape: int) -> torch.Tensor:
            return reader.read(prefix + name, *shape)

        self._config = config
        self._state_id = state_id
        inner = inner_weights(config, read)
        self._channels, self._gates, self._rates, self._times = (
            linears.make(weight, None) for weight in inner
        )
        self._convolution = ShortConvolution(_taps(config, read), None)
        self._time_bias = read("dt_bias", num_heads).float()
        self._decay_rates = -torch.exp(read("A_log", num_heads).float())
        self._norm = read("norm.weight", config.value_dim).float()
        self._out = linears.make(read("out_proj.weight", size, config.num_values), None)

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


def inner_weights(config: DeltaNetConfig, read: Callable[..., torch.Tensor]) -> InnerWeights:
    """From the layer's input, by `read` of a name and a shape."""
    num_values, num_heads, size = config.num_values, config.num_value_heads, config.hidden_size
    if config.stored == "apart":
        sizes = {"q": config.num_keys, "k": config.num_keys, "v": num_values}
        return InnerWeights(
            torch.cat([read(f"{name}_proj.weight", each, size) for name, each in sizes.items()]),
            read("g_proj.weight", num_values, size),
            read("b_proj.weight", num_heads, size),
            read("a_proj.weight", num_heads, size),
        )
    if config.stored == "joined":
        return InnerWeights(
            read("in_proj_qkv.weight", config.num_channels, size),
            read("in_proj_z.weight", num_values, size),
            read("in_proj_b.weight", num_heads, size),
            read("in_proj_a.weight", num_heads, size),
        )
    num_groups = config.num_key_heads
    key_dim, values_dim, num_shares = (
        each // num_groups for each in (config.num_keys, num_values, num_heads)
    )
    joined = read("in_proj_qkvz.weight", config.num_channels + num_values, size)
    by_part = [key_dim, key_dim, values_dim, values_dim]
    parts = torch.split(joined.view(num_groups, -1, size), by_part, dim=1)
    queries, keys, values, gates = (part.flatten(0, 1) for part in parts)
    pairs = read("in_proj_ba.weight", 2 * num_heads, size).view(num_groups, -1, size)
    rates, times = (part.flatten(0, 1) for part in torch.split(pairs, num_shares, dim=1))
    return InnerWeights(torch.cat([queries, keys, values]), gates, rates, times)
