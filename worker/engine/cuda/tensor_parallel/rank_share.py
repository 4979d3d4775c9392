"""A rank's share of a decoder: whole heads, columns of the MLP, and sums where its parts meet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple, Self

import torch

from shared.errors import ConfigError
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.linear import DenseTable, Linear, Table
from worker.engine.lora.lora_projection import LoraPair, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import MlpConfig
from worker.engine.models.layer_ops import LayerOps, Weight, dense
from worker.engine.models.layer_ropes import Angles
from worker.engine.models.loader import WeightReader
from worker.engine.models.norms import HeadNorm, MeanOfRanks
from worker.engine.models.renaming_reader import renamed

_EXPERT_PART = re.compile(r"(?:\d+\.)?(\w+?)(\.weight|_bias)?")
_NAME = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp)\.([^.]+)\.(.+)|(.*)\.sinks")


def divide(config: DecoderConfig, num_ranks: int) -> DecoderConfig:
    """What each rank computes. Raises ConfigError when the ranks' shares are not the same."""
    if num_ranks == 1:
        return config
    if config.beyond_ranks is not None:
        raise ConfigError(
            f"tp={num_ranks} is not possible with {config.architecture}: {config.beyond_ranks} "
            "cannot be divided yet; tp=1 runs it on one GPU"
        )
    layers = {(each.num_heads, each.num_kv_heads) for each in config.attention_layers}
    possible = [
        num
        for num in range(1, max(heads for heads, _ in layers) + 1)
        if all(heads % num == 0 and _shares_kv_heads(kv_heads, num) for heads, kv_heads in layers)
        and not (config.is_qkv_by_head and any(kv_heads % num for _, kv_heads in layers))
        and all(size % num == 0 for size in _mlp_sizes(config))
    ]
    if num_ranks not in possible:
        heads, kv_heads = min(layers)
        sizes = " and ".join(map(str, _mlp_sizes(config)))
        raise ConfigError(
            f"tp={num_ranks} does not divide the model's {heads} attention heads, {kv_heads} heads "
            f"of keys and values and {sizes} values in its MLPs "
            f"(intermediate_size); possible are {', '.join(map(str, possible))}"
        )
    return dataclasses.replace(
        config,
        num_heads=config.num_heads // num_ranks,
        num_kv_heads=max(1, config.num_kv_heads // num_ranks),
        intermediate_size=config.intermediate_size // num_ranks,
        mlp_sizes=tuple(size // num_ranks for size in config.mlp_sizes),
        experts=tuple(each and _divided(each, num_ranks) for each in config.experts),
        latent=config.latent
        and dataclasses.replace(config.latent, num_heads=config.latent.num_heads // num_ranks),
        attention_layers=tuple(
            dataclasses.replace(
                layer,
                num_heads=layer.num_heads // num_ranks,
                num_kv_heads=max(1, layer.num_kv_heads // num_ranks),
            )
            for layer in config.attention_layers
        ),
    )


def _mlp_sizes(config: DecoderConfig) -> Sequence[int]:
    """The sizes of all MLPs, each expert's among them, rising."""
    sizes = {config.mlp_size_of(layer_id) for layer_id in range(config.num_layers)}
    if config.experts and not any(each is None or each.is_beside_mlp for each in config.experts):
        sizes = set()  # no layer has one that is dense
    experts = [each for each in config.experts if each is not None]
    sizes |= {each.intermediate_size for each in experts}
    return sorted(sizes | {each.shared_size for each in experts if each.shared_size})


def _divided(experts: ExpertsConfig, num_ranks: int) -> ExpertsConfig:
    return dataclasses.replace(
        experts,
        intermediate_size=experts.intermediate_size // num_ranks,
        shared_size=experts.shared_size // num_ranks,
    )


def _shares_kv_heads(num_kv_heads: int, num_ranks: int) -> bool:
    """Whether heads divide evenly; where ranks are more, several have the same head."""
    return num_kv_heads % num_ranks == 0 or num_ranks % num_kv_heads == 0


class Slices(NamedTuple):
    """Which of a tensor's rows, or columns, are a rank's."""

    size: int  # of them all
    parts: tuple[range, ...]

    @classmethod
    def of(cls, own: range, size: int) -> Self:
        return cls(size, (own,))

    def behind(self, other: Slices) -> Slices:
        """The slices of a tensor that has both, `other` first."""
        moved = (range(other.size + part.start, other.size + part.stop) for part in self.parts)
        return Slices(other.size + self.size, (*other.parts, *moved))

    def times(self, num: int) -> Slices:
        """Where each is `num` of them."""
        parts = (range(num * part.start, num * part.stop) for part in self.parts)
        return Slices(num * self.size, tuple(parts))

    def take(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """A copy: a view would keep the others' in memory."""
        return torch.cat([tensor.narrow(dim, each.start, len(each)) for each in self.parts], dim)


class ExpertPart(NamedTuple):
    """A tensor of a mixture of experts."""

    module: str
    is_stacked: bool  # all experts' in one
    is_bias: bool

    @classmethod
    def of(cls, name: str) -> ExpertPart:
        """`name` within the experts."""
        match = _EXPERT_PART.fullmatch(name)
        assert match is not None, name
        return cls(match[1], match[2] != ".weight", match[2] == "_bias")


@dataclass(frozen=True, slots=True)
class RankShare:
    """Which parts of a whole model's tensors a rank has."""

    config: DecoderConfig  # of the whole
    rank: int
    num_ranks: int

    def reader(self, reader: WeightReader) -> WeightReader:
        """Reads this rank's share, under our names."""
        return RankReader(self, reader)

    def lora(self, weights: LoraWeights) -> LoraWeights:
        """Its share of an adapter that fits the whole model."""
        shares = dict(weights)
        for layer_id in range(self.config.num_layers):
            blocks = [("self_attn", (*self.config.stored_qkv, "o_proj"))]
            if (mlp := self.config.mlp_of(layer_id)) is not None:
                blocks.append((mlp.block, (*mlp.config.up, mlp.config.down)))
            for block, modules in blocks:
                for module in modules:
                    ours = f"model.layers.{layer_id}.{block}.{module}."
                    name = renamed(ours, self.config.stored_names).removesuffix(".")
                    if name in weights:
                        shares[name] = self._pair(layer_id, module, weights[name])
        return shares

    def _pair(self, layer_id: int, module: str, pair: LoraPair) -> LoraPair:
        rows, columns = self.rows(layer_id, module), self.columns(layer_id, module)
        return LoraPair(
            pair.down if columns is None else columns.take(pair.down, 1),
            pair.up if rows is None else rows.take(pair.up, 0),
        )

    def even(self, size: int) -> Slices:
        """This rank's part, where each rank has as many."""
        share = size // self.num_ranks
        return Slices.of(range(self.rank * share, (self.rank + 1) * share), size)

    def kv_heads(self, layer: AttentionLayer) -> Slices:
        num = layer.num_kv_heads
        start = self.rank * num // self.num_ranks
        return Slices.of(range(start, start + max(1, num // self.num_ranks)), num)

    def rows(self, layer_id: int, module: str) -> Slices | None:
        """The share of a module's outputs, in attention or MLP; None: all ranks have all of it."""
        config = self.config
        layer = config.attention_layers[layer_id]
        queries, kv_heads = self.even(layer.num_heads), self.kv_heads(layer)
        if config.latent is not None and (size := config.latent.size_by_head(module)) is not None:
            return queries.times(size)
        if module in config.stored_qkv and config.latent is None:
            heads = [queries, kv_heads, kv_heads]
            if len(config.stored_qkv) > 1:
                heads = [heads[config.stored_qkv.index(module)]]
            elif config.is_qkv_by_head:
                heads = [kv_heads.times(layer.num_heads // layer.num_kv_heads + 2)]
            return joined(heads).times(layer.head_dim)
        mlp = config.mlp_of(layer_id)
        if mlp is not None and module in mlp.config.up:
            return self.inner(mlp.config, mlp.intermediate_size)
        return None

    def inner(self, mlp: MlpConfig, size: int) -> Slices:
        """The share of the outputs of an MLP's way up; `size`: the MLP's intermediate one."""
        num = len(mlp.up_sizes(size)) if len(mlp.up) == 1 else 1
        return joined([self.even(size)] * num)

    def experts(self, layer_id: int) -> ExpertsConfig | None:
        """The experts of a layer, if it has any."""
        return self.config.experts[layer_id] if self.config.experts else None

    def expert_part(self, experts: ExpertsConfig, part: ExpertPart) -> tuple[Slices, int] | None:
        """Which values of a tensor, and along which of its dimensions; None: they are of a sum."""
        mlp, size = experts.mlp, experts.intermediate_size
        is_down = part.module == ("down_proj" if part.is_stacked else mlp.down)
        if is_down and part.is_bias:
            return None
        is_transposed = part.is_stacked and experts.is_stored_transposed and not part.is_bias
        dim = part.is_stacked + (is_down != is_transposed)
        if is_down:
            return self.even(size), dim
        if not part.is_stacked:
            return self.inner(mlp, size), dim
        num = len(mlp.up_sizes(size))
        in_turns = experts.is_stored_in_turns
        return self.even(num * size) if in_turns else joined([self.even(size)] * num), dim

    def columns(self, layer_id: int, module: str) -> Slices | None:
        """The share of a module's inputs, from which it makes a summand; None: it makes none."""
        if module == "o_proj":
            layer = self.config.attention_layers[layer_id]
            latent = self.config.latent
            size = layer.head_dim if latent is None else latent.value_dim
            return self.even(layer.num_heads).times(size)
        mlp = self.config.mlp_of(layer_id)
        if mlp is not None and module == mlp.config.down:
            return self.even(mlp.intermediate_size)
        return None

    def normed_heads(self, layer_id: int, module: str) -> Slices | None:
        """Whose norms are in a module; None: it has none, or the same for all heads."""
        norm = self.config.head_norm
        if norm is None or module not in norm.modules or norm.scope == "shared":
            return None
        layer = self.config.attention_layers[layer_id]
        is_of_queries = module == norm.modules[0]
        heads = self.even(layer.num_heads) if is_of_queries else self.kv_heads(layer)
        return heads.times(layer.head_dim) if norm.scope == "whole" else heads


def joined(slices: Sequence[Slices]) -> Slices:
    """One behind the other."""
    return reduce(lambda before, each: each.behind(before), slices)


class RankReader:
    """Reads whole tensors and gives a rank's share, of the shape that its configuration says."""

    def __init__(self, share: RankShare, reader: WeightReader) -> None:
        self._share = share
        self._reader = reader

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._read(self._reader.read, name, shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._read(partial(self._reader.read_as, dtype), name, shape)

    def has(self, name: str) -> bool:
        return self._reader.has(name)

    def _read(
        self, read: Callable[..., torch.Tensor], name: str, shape: tuple[int, ...]
    ) -> torch.Tensor:
        share = self._share
        match = _NAME.fullmatch(name)
        if match is None:
            return read(name, *shape)
        if match[5] is not None:
            return self._part(read, name, shape, share.even(share.config.num_heads), 0)
        layer_id, module, kind = int(match[1]), match[3], match[4]
        experts = share.experts(layer_id) if match[2] == "mlp" else None
        if experts is not None and module == "experts":
            part = share.expert_part(experts, ExpertPart.of(kind))
            if part is None:
                return self._summand(read, name, shape)
            return self._part(read, name, shape, *part)
        if experts is not None and module == experts.shared_name:
            module, kind = kind.split(".", 1)
        heads = share.normed_heads(layer_id, module)
        if heads is not None and kind.startswith("norms."):  # a module for each head
            _, idx, kind = kind.split(".")
            (own,) = heads.parts
            prefix = name[: match.start(4)]
            of_ranks = {  # so that all are read
                head: read(f"{prefix}norms.{head}.{kind}", *shape)
                for head in range(int(idx), heads.size, len(own))
            }
            return of_ranks[own.start + int(idx)]
        rows = heads or share.rows(layer_id, module)
        is_transposed = share.config.is_stored_transposed and kind == "weight"
        if rows is not None:
            return self._part(read, name, shape, rows, 1 if is_transposed else 0)
        columns = share.columns(layer_id, module)
        if columns is None:
            return read(name, *shape)
        if kind == "weight":
            return self._part(read, name, shape, columns, 0 if is_transposed else 1)
        return self._summand(read, name, shape)

    def _summand(
        self, read: Callable[..., torch.Tensor], name: str, shape: tuple[int, ...]
    ) -> torch.Tensor:
        """Reads what is added once to a sum: it is in one rank's summand alone."""
        whole = read(name, *shape)
        return whole if self._share.rank == 0 else torch.zeros_like(whole)

    def _part(
        self,
        read: Callable[..., torch.Tensor],
        name: str,
        shape: tuple[int, ...],
        slices: Slices,
        dim: int,
    ) -> torch.Tensor:
        whole = list(shape)
        whole[dim] = slices.size
        return slices.take(read(name, *whole), dim)


class RankLayerOps:
    """The layer operations of a rank: sums over all ranks where a layer's parts meet.

    Outputs are divided among the ranks as well: each multiplies its share of the vocabulary, and
    all have the logits.
    """

    def __init__(self, ops: LayerOps, group: RankGroup, *, adds_in_order: bool) -> None:
        self.linears = ops.linears
        self._ops = ops
        self._group = group
        self._sum = group.sum_in_order if adds_in_order else group.sum

    def begin(self, positions: torch.Tensor) -> None:
        self._ops.begin(positions)

    def angles(self, layer_id: int) -> Angles | None:
        return self._ops.angles(layer_id)

    def query_factors(self, layer_id: int) -> torch.Tensor | None:
        return self._ops.query_factors(layer_id)

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
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

    def projection(self, weight: Weight, bias: torch.Tensor | None) -> Linear:
        return self._ops.projection(weight, bias)

    def table(self, weight: Weight) -> Table:
        return DenseTable(dense(weight), self.head)

    def head(self, weight: Weight) -> Linear:
        """Shares are of one size, the last ones filled up with zeros that nobody sees."""
        weight = dense(weight)
        num_outputs, hidden_size = weight.shape
        share = -(-num_outputs // self._group.size)
        rows = weight[self._group.rank * share :][:share]
        own = weight.new_zeros(share, hidden_size)
        own[: len(rows)] = rows
        linear = self._ops.head(own)
        return lambda hidden: self._group.gather(linear(hidden))[:, :num_outputs].contiguous()

    def by_head(self, weights: torch.Tensor) -> Linear:
        return self._ops.by_head(weights)

    def whole(self, summand: torch.Tensor) -> torch.Tensor:
        self._sum(summand)
        return summand

    @property
    def mean(self) -> MeanOfRanks | None:
        return lambda values: self.whole(values) / self._group.size
