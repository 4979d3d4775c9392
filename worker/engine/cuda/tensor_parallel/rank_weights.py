"""A rank's share of a decoder: whole heads, and columns of the MLP."""

from __future__ import annotations

import dataclasses
import math

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.loader import WeightReader

# What these give is divided among the ranks...
_DIVIDED_ROWS = tuple(
    f".{name}.{kind}"
    for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    for kind in ("weight", "bias")
)
# ... and what these take: they give summands, of which a bias must be in one alone.
_DIVIDED_COLUMNS = (".o_proj.weight", ".down_proj.weight")
_SUMMED_BIASES = (".o_proj.bias", ".down_proj.bias")


def divide(config: DecoderConfig, num_ranks: int) -> DecoderConfig:
    """What one rank computes. Raises ConfigError when the ranks' shares are not the same."""
    divided = {
        "attention heads": config.num_heads,
        "heads of keys and values": config.num_kv_heads,
        "values in the MLP (intermediate_size)": config.intermediate_size,
    }
    for name, number in divided.items():
        if number % num_ranks:
            common = math.gcd(*divided.values())
            possible = [str(each) for each in range(1, common + 1) if common % each == 0]
            raise ConfigError(
                f"tp={num_ranks} does not divide the model's {number} {name}; possible are "
                f"{', '.join(possible)}"
            )
    num_heads, num_kv_heads = config.num_heads // num_ranks, config.num_kv_heads // num_ranks
    return dataclasses.replace(
        config,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        intermediate_size=config.intermediate_size // num_ranks,
        attention_layers=tuple(
            dataclasses.replace(layer, num_heads=num_heads, num_kv_heads=num_kv_heads)
            for layer in config.attention_layers
        ),
    )


class RankReader:
    """Reads whole tensors and gives a rank's share, of the shape that its configuration says."""

    def __init__(self, reader: WeightReader, rank: int, num_ranks: int) -> None:
        self._reader = reader
        self._rank = rank
        self._num_ranks = num_ranks

    def read(self, name: str, *shape: int) -> torch.Tensor:
        if name.endswith(_DIVIDED_ROWS):
            return self._share(name, shape, dim=0)
        if name.endswith(_DIVIDED_COLUMNS):
            return self._share(name, shape, dim=1)
        tensor = self._reader.read(name, *shape)
        if name.endswith(_SUMMED_BIASES) and self._rank > 0:
            return torch.zeros_like(tensor)
        return tensor

    def _share(self, name: str, shape: tuple[int, ...], dim: int) -> torch.Tensor:
        whole = list(shape)
        whole[dim] *= self._num_ranks
        shares = self._reader.read(name, *whole).chunk(self._num_ranks, dim)
        return shares[self._rank].clone()  # a view would keep the others' in memory
