"""The seam between a model and the way that attention is computed."""

from __future__ import annotations

from typing import Protocol

import torch

from worker.engine.forward_batch import ForwardBatch


class AttentionBackend(Protocol):
    """Writes new keys and values into its pool, and attends over what the pool has.

    It is made for a pool and the `AttentionLayer`s of a model: heads, scale and window by layer id.
    """

    def plan(self, batch: ForwardBatch) -> None:
        """Once a step, before the first layer: all that the layers share."""
        ...

    def forward(
        self,
        q: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        k: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        v: torch.Tensor,
        layer_id: int,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """[num_tokens, num_heads * head_dim]."""
        ...
