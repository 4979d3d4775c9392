"""Attention over latents, absorbed: no key or value of a head is ever made."""

from __future__ import annotations

import torch

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import DecoderWeights, Projection
from worker.engine.models.latent.indexer import Indexer
from worker.engine.models.latent.latent_config import LatentConfig
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import rms_norm
from worker.engine.models.rope_config import RopeConfig
from worker.engine.models.rotary import head_order, rotate


class LatentMixer:
    """Attends in the space of the latents.

    A head's key is `K @ latent`, so that `query @ key` is `(K.T @ query) @ latent`; its value is
    `V @ latent`, so that a weighted sum of values is `V` times that of latents. Prompts and answers
    are computed so alike: whichever way a token comes, its bits are the same.
    """

    def __init__(
        self,
        config: LatentConfig,
        rope: RopeConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        attention_id: int,  # its place among the layers that attend
        indexer: Indexer | None = None,  # None: it sees all, or what an earlier layer's chose
    ) -> None:
        self._config = config
        self._indexer = indexer
        self._ops = ops
        self._attention_id = attention_id
        own = _LatentWeights(config, rope, weights, prefix)
        self._down = ops.projection(*own.down())
        self._latent_norm = own.latent_norm()
        self._query_norm: torch.Tensor | None = None
        self._query_up: Linear | None = None
        if config.query_rank is not None:
            self._query_norm = own.query_norm(config.query_rank)
            self._query_up = ops.projection(*own.queries(config.query_rank))
        to_keys, to_values = own.keys_and_values()
        self._absorb = ops.by_head(to_keys.transpose(1, 2))
        self._expand = ops.by_head(to_values)
        self._output = ops.projection(*own.output())

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        config = self._config
        down = self._down(x)
        latents = rms_norm(down[:, : config.latent_dim], self._latent_norm, config.norm_eps)
        shared_keys = down[:, None, config.latent_dim : config.kept_dim]
        query_inputs = self._query_inputs(down[:, config.kept_dim :])
        if self._indexer is not None:
            angles = self._ops.angles(self._attention_id)
            self._indexer.choose(x, query_inputs, angles, attention)
        plain, rotated = self._queries(query_inputs)
        rotated, shared_keys = self._rotated(rotated, shared_keys)
        queries = torch.cat([self._absorb(plain), rotated], dim=-1)
        factors = self._ops.query_factors(self._attention_id)
        if factors is not None:
            queries = (queries * factors).to(queries.dtype)
        keys = torch.cat([latents[:, None], shared_keys], dim=-1)
        values = keys[..., : config.latent_dim]
        attended = attention.forward(queries, keys, values, self._attention_id)
        heads = self._expand(attended.view(len(x), -1, config.latent_dim))
        return self._output(heads.flatten(1))

    def _query_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """The latent of queries, if they have one; else they themselves."""
        if self._query_norm is None:
            return x
        return rms_norm(x, self._query_norm, self._config.norm_eps)

    def _queries(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_tokens, num_heads, plain_dim], and of rotated_dim."""
        config = self._config
        if self._query_up is not None:
            x = self._query_up(x)
        heads = x.reshape(len(x), config.num_heads, config.head_dim)
        return heads[..., : config.plain_dim], heads[..., config.plain_dim :]

    def _rotated(
        self, queries: torch.Tensor, shared_keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = self._ops.angles(self._attention_id)
        if angles is None:
            return queries, shared_keys
        heads = rotate(torch.cat([queries, shared_keys], dim=1), *angles)
        return heads[:, :-1], heads[:, -1:]


class _LatentWeights:
    """Reads a layer's; rotated values come in the order of their pairs."""

    def __init__(
        self, config: LatentConfig, rope: RopeConfig, weights: DecoderWeights, prefix: str
    ) -> None:
        self._config = config
        self._weights = weights
        self._prefix = prefix
        order = head_order(rope, config.rotated_dim)
        self._order = torch.arange(config.rotated_dim) if order is None else order

    def down(self) -> Projection:
        """What reads the layer's input: to the latent, the shared key, and queries or theirs."""
        config = self._config
        rank = config.query_rank
        sizes = {"kv_a_proj_with_mqa": config.kept_dim}
        sizes |= {"q_proj": config.num_queries} if rank is None else {"q_a_proj": rank}
        joined = self._weights.projection(self._prefix, sizes, config.hidden_size)
        kept = torch.cat([torch.arange(config.latent_dim), config.latent_dim + self._order])
        num_queries = config.num_queries if rank is None else rank
        queries = self._query_rows() if rank is None else torch.arange(rank)
        if config.has_bias:
            bias = self._read("kv_a_proj_with_mqa.bias", config.kept_dim)
            rest = (
                bias.new_zeros(num_queries) if rank is None else self._read("q_a_proj.bias", rank)
            )
            joined = joined._replace(bias=torch.cat([bias, rest]))
        return joined.with_rows(torch.cat([kept, config.kept_dim + queries]))

    def queries(self, query_rank: int) -> Projection:
        """From the latent of queries to all heads."""
        sizes = {"q_b_proj": self._config.num_queries}
        joined = self._weights.projection(self._prefix, sizes, query_rank)
        return joined.with_rows(self._query_rows())

    def query_norm(self, query_rank: int) -> torch.Tensor:
        return self._read("q_a_layernorm.weight", query_rank)

    def latent_norm(self) -> torch.Tensor:
        return self._read("kv_a_layernorm.weight", self._config.latent_dim)

    def keys_and_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_heads, plain_dim, latent_dim], and of value_dim."""
        config = self._config
        num_rows = config.num_heads * (config.plain_dim + config.value_dim)
        weight = self._read("kv_b_proj.weight", num_rows, config.latent_dim)
        heads = weight.view(config.num_heads, -1, config.latent_dim)
        return heads[:, : config.plain_dim], heads[:, config.plain_dim :]

    def output(self) -> Projection:
        config = self._config
        return self._weights.projection(
            self._prefix,
            {"o_proj": config.hidden_size},
            config.num_heads * config.value_dim,
            has_bias=config.has_bias,
        )

    def _query_rows(self) -> torch.Tensor:
        """[num_heads * head_dim]: where each value of a query is stored."""
        config = self._config
        order = torch.cat([torch.arange(config.plain_dim), config.plain_dim + self._order])
        heads = torch.arange(config.num_heads)[:, None] * config.head_dim
        return (heads + order).flatten()

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        return self._weights.reader.read(self._prefix + name, *shape)
