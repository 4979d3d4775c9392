"""What a decoder layer does between its linears and its attention."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker.engine.models.rotary import rotate


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension."""
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def add_rms_norm(
    delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the sum, and the sum: [num_tokens, hidden_size] each."""
    total = residual + delta
    return rms_norm(total, weight, eps), total


def norm_rotate(
    heads: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Queries and keys [num_tokens, num_heads + num_kv_heads, head_dim], rotated.

    `norm` [num_heads + num_kv_heads, head_dim]: weights of a norm of each head, before.
    """
    if norm is not None:
        heads = functional.rms_norm(heads, heads.shape[-1:], None, eps) * norm
    return rotate(heads, *angles)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * intermediate_size] -> [num_tokens, intermediate_size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
