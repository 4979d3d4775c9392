"""How a checkpoint stores the experts of a layer: each by itself, or all in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_weights import Projection, stored_sizes
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.loader import WeightReader
from worker.engine.models.stored_experts import Weight, gates_first, joined

ReadWeight = Callable[..., Weight]  # a name and a shape


class StoredExpert(NamedTuple):
    """One, with gates before the values that they are multiplied with."""

    ups: tuple[Weight, ...]  # [intermediate_size, outer_size] each, or joined
    up_bias: torch.Tensor | None  # of all of them
    down: Weight  # [outer_size, intermediate_size]
    down_bias: torch.Tensor | None

    def up(self) -> Projection:
        """Joined: in codes where all are in the same."""
        return joined(*self.ups)._replace(bias=self.up_bias)

    def dense_up(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Joined, of one that was read without codes: weight and bias."""
        ups = [each for each in self.ups if isinstance(each, torch.Tensor)]
        return ups[0] if len(ups) == 1 else torch.cat(ups), self.up_bias

    def dense_down(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Likewise."""
        return Projection(self.down, self.down_bias).dense()


def read_experts(
    config: ExpertsConfig,
    reader: WeightReader,
    prefix: str,  # of the names of the MLP's tensors
    read: ReadWeight,
) -> Iterator[StoredExpert]:
    """One after the other. Raises ConfigError."""
    num_experts, outer_size, size = config.num_experts, config.outer_size, config.intermediate_size
    up_sizes = config.mlp.up_sizes(size)
    up_name = f"{prefix}experts.{'gate_up_proj' if config.mlp.is_gated else 'up_proj'}"
    if config.has_bias or reader.has(up_name):
        yield from _read_stacked(config, reader, up_name, f"{prefix}experts.down_proj", read)
        return
    for idx in range(num_experts):
        expert = f"{prefix}experts.{idx}."
        parts = stored_sizes(config.mlp.up, up_sizes).items()
        ups = tuple(read(f"{expert}{name}.weight", part, outer_size) for name, part in parts)
        down = read(f"{expert}{config.mlp.down}.weight", outer_size, size)
        yield StoredExpert(ups, None, down, None)


def _read_stacked(
    config: ExpertsConfig,
    reader: WeightReader,
    up_name: str,
    down_name: str,
    read: ReadWeight,
) -> Iterator[StoredExpert]:
    """All of them lie in two tensors, and their biases in two more."""
    num_experts, outer_size, size = config.num_experts, config.outer_size, config.intermediate_size
    up_size = sum(config.mlp.up_sizes(size))
    up_shape, down_shape = (up_size, outer_size), (outer_size, size)
    if config.is_stored_transposed:
        up_shape, down_shape = up_shape[::-1], down_shape[::-1]
    ups = read(up_name, num_experts, *up_shape)
    downs = read(down_name, num_experts, *down_shape)
    up_biases = down_biases = None
    if config.has_bias:
        up_biases = reader.read(f"{up_name}_bias", num_experts, up_size)
        down_biases = reader.read(f"{down_name}_bias", num_experts, outer_size)
    order = gates_first(up_size) if config.is_stored_in_turns else None
    for idx in range(num_experts):
        up = Projection(_matrix(config, ups, idx), None if up_biases is None else up_biases[idx])
        if order is not None:
            up = up.with_rows(order)
        yield StoredExpert(
            (up.weight,),
            up.bias,
            _matrix(config, downs, idx),
            None if down_biases is None else down_biases[idx],
        )


def _matrix(config: ExpertsConfig, experts: Weight, idx: int) -> Weight:
    """[out_features, in_features] of one."""
    if isinstance(experts, torch.Tensor):
        return experts[idx].T.contiguous() if config.is_stored_transposed else experts[idx]
    if experts.is_turned != config.is_stored_transposed:
        raise ConfigError("codes of experts that are stored transposed are not supported")
    return replace(experts, is_turned=False).matrix(idx)
