"""Attention over latents, absorbed: no key or value of a head is ever made."""

from __future__ import annotations

import torch

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.latent.indexer import Indexer
from worker.engine.models.latent.latent_config import LatentConfig
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.loader import WeightReader
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
        reader: WeightReader,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        attention_id: int,  # its place among the layers that attend
        indexer: Indexer | None = None,  # None: it sees all, or what an earlier layer's chose
    ) -> None:
        self._config = config
        self._indexer = indexer
        self._ops = ops
        self._attention_id = attention_id
        weights = _LatentWeights(config, rope, reader, prefix)
        self._down = ops.linears.make(*weights.down())
        self._latent_norm = weights.latent_norm()
        self._query_norm: torch.Tensor | None = None
        self._query_up: Linear | None = None
        if config.query_rank is not None:
            self._query_norm = weights.query_norm(config.query_rank)
            self._query_up = ops.linears.make(weights.queries(config.query_rank), None)
        to_keys, to_values = weights.keys_and_values()
        self._absorb = ops.by_head(to_keys.transpose(1, 2))
        self._expand = ops.by_head(to_values)
        self._output = ops.linears.make(*weights.output())

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
        self, config: LatentConfig, rope: RopeConfig, reader: WeightReader, prefix: str
    ) -> None:
        self._config = config
        self._reader = reader
        self._prefix = prefix
        order = head_order(rope, config.rotated_dim)
        self._order = torch.arange(config.rotated_dim) if order is None else order

    def down(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What reads the layer's input: to the latent, the shared key, and queries or theirs."""
        config = self._config
        inputs = config.hidden_size
        latents = self._kept_in_order("kv_a_proj_with_mqa.weight", inputs)
        if config.query_rank is None:
            weight, query_bias = torch.cat([latents, self.queries(inputs)]), None
        else:
            own = self._read("q_a_proj.weight", config.query_rank, inputs)
            weight, query_bias = torch.cat([latents, own]), ("q_a_proj.bias", config.query_rank)
        if not config.has_bias:
            return weight, None
        bias = weight.new_zeros(len(weight))
        bias[: config.kept_dim] = self._kept_in_order("kv_a_proj_with_mqa.bias")
        if query_bias is not None:
            bias[config.kept_dim :] = self._read(*query_bias)
        return weight, bias

    def queries(self, num_inputs: int) -> torch.Tensor:
        """[num_heads * head_dim, num_inputs]."""
        config = self._config
        name = "q_proj.weight" if config.query_rank is None else "q_b_proj.weight"
        weight = self._read(name, config.num_heads * config.head_dim, num_inputs)
        heads = weight.view(config.num_heads, config.head_dim, num_inputs)
        order = torch.cat([torch.arange(config.plain_dim), config.plain_dim + self._order])
        return heads[:, order.to(heads.device)].flatten(0, 1)

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

    def output(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        config = self._config
        size = config.hidden_size
        weight = self._read("o_proj.weight", size, config.num_heads * config.value_dim)
        return weight, self._read("o_proj.bias", size) if config.has_bias else None

    def _kept_in_order(self, name: str, *shape: int) -> torch.Tensor:
        """[kept_dim, ...]."""
        latent_dim = self._config.latent_dim
        whole = self._read(name, self._config.kept_dim, *shape)
        rows = torch.cat([torch.arange(latent_dim), latent_dim + self._order])
        return whole[rows.to(whole.device)]

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read(self._prefix + name, *shape)
