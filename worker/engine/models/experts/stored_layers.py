"""How a checkpoint stores the experts of a layer: each by itself, or all in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from worker.engine.models.decoder_weights import stored_sizes
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.loader import WeightReader

Stored = TypeVar("Stored")


def read_experts(
    config: ExpertsConfig,
    reader: WeightReader,
    prefix: str,  # of the names of the MLP's tensors
    read: Callable[..., Stored],  # a name and a shape
    pick: Callable[[Stored, int], Stored],  # of all experts' matrices, one
) -> Iterator[tuple[tuple[Stored, ...], Stored]]:
    """Of one after the other what leads up, [intermediate_size, outer_size] each or joined, and
    what leads down, [outer_size, intermediate_size]; `pick` gives them so also where they are
    stored transposed. Raises ConfigError.
    """
    num_experts, outer_size, size = config.num_experts, config.outer_size, config.intermediate_size
    up_sizes = config.mlp.up_sizes(size)
    stacked_up = f"{prefix}experts.{'gate_up_proj' if config.mlp.is_gated else 'up_proj'}"
    if reader.has(stacked_up):
        up_shape, down_shape = (sum(up_sizes), outer_size), (outer_size, size)
        if config.is_stored_transposed:
            up_shape, down_shape = up_shape[::-1], down_shape[::-1]
        ups = read(stacked_up, num_experts, *up_shape)
        downs = read(f"{prefix}experts.down_proj", num_experts, *down_shape)
        for idx in range(num_experts):
            yield (pick(ups, idx),), pick(downs, idx)
        return
    for idx in range(num_experts):
        expert = f"{prefix}experts.{idx}."
        parts = stored_sizes(config.mlp.up, up_sizes).items()
        yield (
            tuple(read(f"{expert}{name}.weight", part, outer_size) for name, part in parts),
            read(f"{expert}{config.mlp.down}.weight", outer_size, size),
        )
