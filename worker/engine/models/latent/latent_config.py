"""How attention over latents is made, told by data."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.model_config import ConfigFile

_NORM_EPS = 1e-6  # of queries and of latents, whatever the layers' norms have


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """What chooses the positions that a token sees, by small queries and keys of its own (DeepSeek
    sparse attention, of DeepSeek-V3.2-Exp).
    """

    num_heads: int
    head_dim: int  # of whose values the first are rotated, as many as of a head
    num_chosen: int
    has_neighbours: bool  # pairs are stored side by side, not half of what is rotated apart
    layer_ids: tuple[int, ...]  # of those that choose; others see what the last of them chose

    def turn_of(self, layer_id: int) -> int:
        """Which of those that choose has chosen for it last."""
        return bisect(self.layer_ids, layer_id) - 1

    @property
    def attention_layer(self) -> AttentionLayer:
        """Without a scale: no factor of all scores changes a choice."""
        return AttentionLayer(
            self.num_heads, 1, self.head_dim, scale=1.0, num_chosen=self.num_chosen
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """DeepSeek's multi-head latent attention (arXiv 2405.04434, section 2.1).

    Of each token one vector is kept: a latent, of which the keys and values of all heads are linear
    functions, and behind it a rotated part of the key, which all heads share.
    """

    hidden_size: int
    num_heads: int
    query_rank: int | None  # values of which all queries are made; None: of the layer's input
    latent_dim: int
    rotated_dim: int  # of a head's query and key, as the next
    plain_dim: int
    value_dim: int  # of a head
    has_bias: bool  # of what reads and writes the layer's stream
    norm_eps: float = _NORM_EPS
    indexer: IndexerConfig | None = None  # then queries have a rank; None: a token sees all

    @property
    def num_indexer_values(self) -> int:
        """The values of an indexer's matrices."""
        assert self.indexer is not None
        assert self.query_rank is not None
        num_queries = self.query_rank * self.indexer.num_heads * self.indexer.head_dim
        return num_queries + self.hidden_size * (self.indexer.head_dim + self.indexer.num_heads)

    @property
    def kept_dim(self) -> int:
        """Values of a token in a page."""
        return self.latent_dim + self.rotated_dim

    @property
    def head_dim(self) -> int:
        """The size of a query or key before it is absorbed."""
        return self.plain_dim + self.rotated_dim

    @property
    def num_queries(self) -> int:
        """The values of the queries of all heads."""
        return self.num_heads * self.head_dim

    @property
    def num_projection_values(self) -> int:
        """The values of a layer's matrices."""
        query_inputs = self.query_rank or self.hidden_size
        num_values = query_inputs * self.num_queries
        if self.query_rank is not None:
            num_values += self.hidden_size * self.query_rank
        num_values += self.hidden_size * self.kept_dim
        num_values += self.num_absorbed_values
        return num_values + self.num_heads * self.value_dim * self.hidden_size

    @property
    def projection_names(self) -> tuple[str, ...]:
        """Those of a layer that are multiplied as they are stored, so not what is absorbed."""
        queries = ("q_proj",) if self.query_rank is None else ("q_a_proj", "q_b_proj")
        chosen = () if self.indexer is None else ("indexer.wq_b", "indexer.wk")
        return ("kv_a_proj_with_mqa", *queries, "o_proj", *chosen)

    @property
    def num_absorbed_values(self) -> int:
        """The values of the matrices of a layer's heads, to keys and to values."""
        return self.latent_dim * self.num_heads * (self.plain_dim + self.value_dim)

    def size_by_head(self, module: str) -> int | None:
        """What a head has of what a module gives; None: it gives what all heads share."""
        queries = "q_proj" if self.query_rank is None else "q_b_proj"
        return {queries: self.head_dim, "kv_b_proj": self.plain_dim + self.value_dim}.get(module)

    def attention_layer(self, scale: float) -> AttentionLayer:
        """All heads of queries share the one key, whose first values are the value."""
        return AttentionLayer(
            self.num_heads, 1, self.kept_dim, scale, None, latent_dim=self.latent_dim
        )


def latent_config(config: ConfigFile) -> LatentConfig:
    """In DeepSeek's words. Raises ConfigError."""
    num_heads = config.integer("num_attention_heads")
    config.refuse("num_key_value_heads", num_heads)
    return LatentConfig(
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        query_rank=config.optional_integer("q_lora_rank", None),
        latent_dim=config.integer("kv_lora_rank"),
        rotated_dim=config.integer("qk_rope_head_dim"),
        plain_dim=config.integer("qk_nope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        has_bias=config.boolean("attention_bias", default=False),
    )
