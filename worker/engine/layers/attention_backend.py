"""How a layer attends, and the seam between a model and the way that attention is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLayer:
    """Weights are softmax(scale * q @ k), over what the layer lets a token see.

    A backend is made for the layers of one model; one that cannot compute a layer refuses it then,
    with a ConfigError that names what it lacks.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None  # a token sees itself and the window - 1 before it; None: all
    soft_cap: float | None = None  # a score becomes soft_cap * tanh(score / soft_cap)
    sinks: torch.Tensor | None = None  # [num_heads] float32: a score more, of a value of zeros
    latent_dim: int | None = None  # a value is the first so many of its key; None: it is kept, too
    kv_layer_id: int | None = None  # an earlier layer, whose keys and values it sees; None: its own
    chunk: int | None = None  # tokens of positions [0, chunk), and so on, see none of others
    is_causal: bool = False  # no token sees a later one, those of one image neither
    # An indexer: it keeps keys alone, and attends to nothing. For each token it chooses so many
    # positions, all that others, which name it, let the token see.
    num_chosen: int | None = None
    indexer_id: int | None = None  # an indexer that has chosen before; None: none chooses for it

    @property
    def group(self) -> int:
        """The query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_values(self) -> int:
        """How many numbers attention gives for a head."""
        return self.latent_dim or self.head_dim

    @property
    def reach(self) -> int | None:
        """A token sees none before the `reach - 1` last ones; None: it may see all."""
        return self.chunk if self.window is None else self.window

    @property
    def num_vectors(self) -> int:
        """What is kept of a token and a KV head: its key, and its value."""
        return 2 if self.latent_dim is None and self.num_chosen is None else 1


class AttentionBackend(Protocol):
    """Writes new keys and values into its pool, and attends over what the pool has.

    It is made for a pool and the `AttentionLayer`s of a model: heads, scale and window by layer id.
    Before the first layer of a step it was told, by whoever runs the model, what the step has.
    """

    def forward(
        self,
        q: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        k: torch.Tensor | None,  # [num_tokens, num_kv_heads, head_dim]; None: the layer has none
        v: torch.Tensor | None,  # alike; [num_tokens, 1, latent_dim], a part of k, of a latent
        layer_id: int,
    ) -> torch.Tensor:
        """[num_tokens, num_heads * head_dim], or of as many values as a latent has."""
        ...


@runtime_checkable
class ChoosingAttention(AttentionBackend, Protocol):
    """One that computes indexers, too."""

    def choose(
        self,
        q: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        weights: torch.Tensor,  # [num_tokens, num_heads] float32
        k: torch.Tensor,  # [num_tokens, 1, head_dim]
        layer_id: int,
    ) -> None:
        """Before the layers that name it: writes `k`, and chooses for each token the positions of
        the highest sums over heads of weight * relu(q @ k), of equals the first.
        """
        ...
