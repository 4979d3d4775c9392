"""The seam between a step on a GPU and the way that its attention is computed."""

from __future__ import annotations

from typing import Protocol

import torch

from worker.engine.attention.attention_backend import AttentionBackend
from worker.engine.cuda.gpu_batch import GpuBatch
from worker.engine.cuda.gpu_kv_pool import GpuKVPool
from worker.engine.models.rotary import RotaryEmbedding


class GpuAttention(AttentionBackend, Protocol):
    """`begin` comes once a step, before the first layer, and may be part of a CUDA graph."""

    def begin(self, batch: GpuBatch) -> None: ...

    def forward_qkv(
        self,
        qkv: torch.Tensor,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        norm: torch.Tensor | None,  # [num_heads + num_kv_heads, head_dim]
        eps: float,
        rotary: RotaryEmbedding,
        layer_id: int,
    ) -> torch.Tensor:
        """Norms and rotates before it writes and attends: [num_tokens, num_heads * head_dim]."""
        ...


def append(
    pool: GpuKVPool, layer_id: int, k: torch.Tensor, v: torch.Tensor, out_loc: torch.Tensor
) -> None:
    """Writes [num_tokens, num_kv_heads, head_dim] each to slots [num_tokens]."""
    keys, values = pool.keys_and_values(layer_id)
    keys.flatten(0, 1).index_copy_(0, out_loc, k.to(keys.dtype))
    values.flatten(0, 1).index_copy_(0, out_loc, v.to(values.dtype))
