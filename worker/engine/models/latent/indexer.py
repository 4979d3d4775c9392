"""Chooses the positions that a token sees, where attention over latents is sparse."""

from __future__ import annotations

from dataclasses import replace

import torch

from worker.engine.layers.attention_backend import AttentionBackend, ChoosingAttention
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.latent.latent_config import LatentConfig
from worker.engine.models.layer_config import NormConfig
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.layer_ropes import Angles
from worker.engine.models.norms import FloatNorm, NormWeights
from worker.engine.models.rope_config import RopeConfig
from worker.engine.models.rotary import head_order, rotate

_KEY_NORM = NormConfig(kind="layer", eps=1e-6, has_bias=True)


class Indexer:
    """Queries of the latent of a layer's queries, one key of its input, and of that, too, what each
    head counts: in float32, as all that decides.
    """

    def __init__(
        self,
        latent: LatentConfig,
        rope: RopeConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its layer's tensors
        ops: LayerOps,
        indexer_id: int,  # its place among the layers of the pool
    ) -> None:
        config, size, query_rank = latent.indexer, latent.hidden_size, latent.query_rank
        assert config is not None
        assert query_rank is not None, "its queries are made of those of the layer"
        self._config = config
        self._rotated_dim = latent.rotated_dim
        self._indexer_id = indexer_id
        order = torch.arange(config.head_dim)
        rotated = head_order(
            replace(rope, has_neighbours=config.has_neighbours), latent.rotated_dim
        )
        if rotated is not None:
            order[: latent.rotated_dim] = rotated

        def read(name: str, *shape: int) -> torch.Tensor:
            return weights.reader.read(f"{prefix}indexer.{name}", *shape)

        def projection(name: str, num_heads: int, num_inputs: int) -> Linear:
            sizes = {name: num_heads * config.head_dim}
            heads = torch.arange(num_heads)[:, None] * config.head_dim
            stored = weights.projection(f"{prefix}indexer.", sizes, num_inputs)
            return ops.projection(*stored.with_rows((heads + order).flatten()))

        self._queries = projection("wq_b", config.num_heads, query_rank)
        self._key = projection("wk", 1, size)
        norm = [read(f"k_norm.{name}", config.head_dim)[order] for name in ("weight", "bias")]
        self._norm = FloatNorm(_KEY_NORM, NormWeights(*norm))
        name = f"{prefix}indexer.weights_proj.weight"
        shares = weights.reader.read_as(torch.float32, name, config.num_heads, size)
        self._weights = ops.linears.make(shares, None)

    def choose(
        self,
        x: torch.Tensor,  # [num_tokens, hidden_size], the layer's input
        query_latents: torch.Tensor,  # [num_tokens, query_rank]
        angles: Angles | None,
        attention: AttentionBackend,
    ) -> None:
        """Chooses for this step, and the layers that see what it chooses."""
        assert isinstance(attention, ChoosingAttention), "checked when the model was loaded"
        queries = self._queries(query_latents).view(len(x), -1, self._config.head_dim)
        heads = torch.cat([queries, self._norm.of(self._key(x))[:, None]], dim=1)
        if angles is not None:
            rotated, plain = heads[..., : self._rotated_dim], heads[..., self._rotated_dim :]
            heads = torch.cat([rotate(rotated, *angles), plain], dim=-1)
        weights = self._weights(x.float())
        attention.choose(heads[:, :-1], weights, heads[:, -1:], self._indexer_id)
