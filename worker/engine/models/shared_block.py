"""Blocks of attention and MLP whose weights several layers share, as Zamba 2 has them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import torch

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear, Linears, Table
from worker.engine.models.decoder_config import QKV_PARTS, DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_config import SharedBlocksConfig
from worker.engine.models.layer_ops import LayerOps, mlp_activation
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import rms_norm


class Layer(Protocol):
    """What it adds is given on, for the next norm to add."""

    def forward(
        self,
        delta: torch.Tensor,  # [num_tokens, hidden_size], of the layer before
        residual: torch.Tensor,  # the same shape: the sum without it
        batch: ModelInput,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class Adapter:
    """What a layer adds to a projection that others have, too: of low rank."""

    def __init__(self, down: torch.Tensor, ups: list[torch.Tensor], linears: Linears) -> None:
        """`down` [len(ups) * rank, in_features]; `ups` [out_features, rank] each, of the parts of
        a joined projection.
        """
        self._down = linears.make(down, None)
        self._ups = [linears.make(up, None) for up in ups]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._down(x).chunk(len(self._ups), dim=-1)
        return torch.cat([up(part) for up, part in zip(self._ups, parts, strict=True)], dim=-1)


class Turn(NamedTuple):
    """A layer's own in the block that it takes."""

    attention: Adapter | None
    mlp: Adapter
    attention_id: int  # its place among the layers that attend


class SharedBlock:
    """Attention, then an MLP, each behind a norm; nothing is added to what they are given."""

    def __init__(
        self,
        config: DecoderConfig,
        shared: SharedBlocksConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
    ) -> None:
        size, inner_size = config.hidden_size, config.intermediate_size
        queries_size, keys_size = (
            each * config.head_dim for each in (config.num_heads, config.num_kv_heads)
        )

        def read(name: str, *shape: int) -> torch.Tensor:
            return weights.reader.read(prefix + name, *shape)

        def attention(sizes: dict[str, int], num_inputs: int) -> Linear:
            return ops.projection(*weights.projection(f"{prefix}self_attn.", sizes, num_inputs))

        def mlp(name: str, num_outputs: int, num_inputs: int) -> Linear:
            stem, has_bias = f"{prefix}feed_forward.", shared.has_mlp_bias
            return ops.projection(
                *weights.projection(stem, {name: num_outputs}, num_inputs, has_bias=has_bias)
            )

        self._ops = ops
        self._mlp = shared.mlp
        self._head_dim = config.head_dim
        self._eps = config.norm.eps
        self._before_attention = read("input_layernorm.weight", 2 * size)
        sizes = zip(QKV_PARTS, (queries_size, keys_size, keys_size), strict=True)
        self._qkv = attention(dict(sizes), 2 * size)
        self._output = attention({"o_proj": size}, queries_size)
        self._before_mlp = read("pre_ff_layernorm.weight", size)
        self._gate_up = mlp("gate_up_proj", 2 * inner_size, size)
        self._down = mlp("down_proj", size, inner_size)

    def forward(self, x: torch.Tensor, turn: Turn, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, 2 * hidden_size] -> [num_tokens, hidden_size]."""
        x = rms_norm(x, self._before_attention, self._eps)
        qkv = self._qkv(x)
        if turn.attention is not None:
            qkv = qkv + turn.attention(x)
        heads = qkv.view(len(qkv), -1, self._head_dim)
        attended = self._output(self._ops.attend(heads, None, turn.attention_id, attention))
        x = rms_norm(attended, self._before_mlp, self._eps)
        return self._down(mlp_activation(self._mlp, self._gate_up(x) + turn.mlp(x)))


class SharedBlockLayer:
    """A layer that is given what a block makes of the stream, beside the stream."""

    def __init__(
        self,
        layer: Layer,
        block: SharedBlock,
        turn: Turn,
        linear: Linear,  # to hidden_size: what the block gives goes through it
        embeddings: Table,
    ) -> None:
        self._layer = layer
        self._block = block
        self._turn = turn
        self._linear = linear
        self._embeddings = embeddings

    def forward(
        self,
        delta: torch.Tensor,
        residual: torch.Tensor,
        batch: ModelInput,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + delta
        embedded = self._embeddings.rows(batch.input_ids)
        for each in batch.image_rows:
            each.put_into(embedded)
        given = self._block.forward(torch.cat([residual, embedded], dim=-1), self._turn, attention)
        delta, _ = self._layer.forward(self._linear(given), residual, batch, attention)
        return delta, residual


def put_in_shared_blocks(
    config: DecoderConfig,
    shared: SharedBlocksConfig,
    layers: list[Layer],
    embeddings: Table,
    weights: DecoderWeights,
    ops: LayerOps,
) -> None:
    """Replaces those of `layers` that take a block."""
    blocks: dict[int, SharedBlock] = {}
    size, linears = config.hidden_size, ops.linears
    for turn, layer_id in enumerate(shared.layer_ids):
        block_id = shared.block_of(turn)
        prefix = f"model.layers.{block_id}.shared_transformer."
        if block_id not in blocks:
            blocks[block_id] = SharedBlock(config, shared, weights, prefix, ops)
        adapter = partial(_adapter, weights.reader, prefix, turn, shared.adapter_rank, linears)
        up_size = sum(shared.mlp.up_sizes(config.intermediate_size))
        qkv = None
        if shared.adapts_attention:
            parts = dict.fromkeys("qkv", 2 * size)
            qkv = adapter("self_attn.linear_{}_adapter_list", parts, 2 * size)
        gate_up = adapter("feed_forward.{}_proj_adapter_list", {"gate_up": up_size}, size)
        own = weights.projection(f"model.layers.{layer_id}.", {"linear": size}, size)
        layers[layer_id] = SharedBlockLayer(
            layers[layer_id],
            blocks[block_id],
            Turn(qkv, gate_up, turn),
            ops.projection(*own),
            embeddings,
        )


def _adapter(
    reader: WeightReader,
    prefix: str,
    turn: int,
    rank: int,
    linears: Linears,
    module: str,  # with a place for the name of a part
    parts: dict[str, int],  # output features of each
    in_features: int,
) -> Adapter:
    names = {f"{prefix}{module.format(part)}.{turn}": size for part, size in parts.items()}
    downs = [reader.read(f"{name}.0.weight", rank, in_features) for name in names]
    ups = [reader.read(f"{name}.1.weight", size, rank) for name, size in names.items()]
    return Adapter(torch.cat(downs), ups, linears)
