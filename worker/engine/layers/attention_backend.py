"""The seam between a model and the way that attention is computed."""

from __future__ import annotations

from typing import Protocol

import torch


class AttentionBackend(Protocol):
    """Writes new keys and values into its pool, and attends over what the pool has.

    It is made for a pool and the `AttentionLayer`s of a model: heads, scale and window by layer id.
    Before the first layer of a step it was told, by whoever runs the model, what the step has.
    """

    def forward(
        self,
        q: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        k: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        v: torch.Tensor,
        layer_id: int,
    ) -> torch.Tensor:
        """[num_tokens, num_heads * head_dim]."""
        ...
