"""A rank's share of a decoder: whole heads, columns of the MLP, and sums where its parts meet."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import torch

from shared.errors import ConfigError
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.layer_ropes import Angles
from worker.engine.models.loader import WeightReader
from worker.engine.models.norms import HeadNorm

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
    if num_ranks > 1 and config.beyond_llama is not None:
        raise ConfigError(
            f"tp={num_ranks} is not possible with {config.architecture}: {config.beyond_llama} "
            "cannot be divided yet; tp=1 runs it on one GPU"
        )
    joined = [each for each in (config.stored_qkv, config.mlp.up) if len(each) == 1]
    if joined and num_ranks > 1:
        raise ConfigError(
            f"tp={num_ranks} is not possible with {config.architecture}: its {joined[0][0]} is "
            "several projections in one"
        )
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
        return self._read(self._reader.read, name, shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._read(partial(self._reader.read_as, dtype), name, shape)

    def has(self, name: str) -> bool:
        return self._reader.has(name)

    def _read(
        self, read: Callable[..., torch.Tensor], name: str, shape: tuple[int, ...]
    ) -> torch.Tensor:
        if name.endswith(_DIVIDED_ROWS):
            return self._share(read, name, shape, dim=0)
        if name.endswith(_DIVIDED_COLUMNS):
            return self._share(read, name, shape, dim=1)
        tensor = read(name, *shape)
        if name.endswith(_SUMMED_BIASES) and self._rank > 0:
            return torch.zeros_like(tensor)
        return tensor

    def _share(
        self, read: Callable[..., torch.Tensor], name: str, shape: tuple[int, ...], dim: int
    ) -> torch.Tensor:
        whole = list(shape)
        whole[dim] *= self._num_ranks
        shares = read(name, *whole).chunk(self._num_ranks, dim)
        return shares[self._rank].clone()  # a view would keep the others' in memory


class RankLayerOps:
    """The layer operations of a rank: sums over all ranks where a layer's parts meet.

    What attention and MLP add is whole only as a sum, and the next norm is the first to read it.

    Outputs are divided among the ranks as well: each multiplies its share of the vocabulary, and
    all have the logits.
    """

    def __init__(self, ops: LayerOps, group: RankGroup, *, is_deterministic: bool) -> None:
        self.linears = ops.linears
        self._ops = ops
        self._group = group
        self._sum = group.sum_in_order if is_deterministic else group.sum
        self._is_whole = True  # nothing but embeddings, which every rank has

    def begin(self, positions: torch.Tensor) -> None:
        self._is_whole = True
        self._ops.begin(positions)

    def angles(self, layer_id: int) -> Angles | None:
        return self._ops.angles(layer_id)

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._is_whole:
            self._sum(delta)
        self._is_whole = False
        return self._ops.add_rms_norm(delta, residual, weight, eps)

    def attend(
        self,
        qkv: torch.Tensor,
        norm: HeadNorm | None,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        return self._ops.attend(qkv, norm, layer_id, attention)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._ops.silu_mul(gate_up)

    def head(self, weight: torch.Tensor) -> Linear:
        """Shares are of one size, the last ones filled up with zeros that nobody sees."""
        num_outputs, hidden_size = weight.shape
        share = -(-num_outputs // self._group.size)
        rows = weight[self._group.rank * share :][:share]
        own = weight.new_zeros(share, hidden_size)
        own[: len(rows)] = rows
        linear = self._ops.head(own)
        return lambda hidden: self._group.gather(linear(hidden))[:, :num_outputs].contiguous()
