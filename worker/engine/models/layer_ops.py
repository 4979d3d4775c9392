"""What a decoder layer does between its linears: a seam, and plain torch behind it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear, Linears
from worker.engine.models.rotary import RotaryEmbedding, rotate


class LayerOps(Protocol):
    """Made for one model, and for the device that it is on."""

    @property
    def linears(self) -> Linears: ...

    def begin(self, positions: torch.Tensor) -> None:
        """Once a step, before the first layer: [num_tokens] int64."""
        ...

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of the sum, and the sum: [num_tokens, hidden_size] each."""
        ...

    def attend(
        self,
        qkv: torch.Tensor,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        norm: torch.Tensor | None,  # [num_heads + num_kv_heads, head_dim], of each head
        eps: float,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """Norms and rotates queries and keys, and attends: [num_tokens, num_heads * head_dim]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[num_tokens, 2 * intermediate_size] -> [num_tokens, intermediate_size]."""
        ...

    def head(self, weight: torch.Tensor) -> Linear:
        """To all outputs; `weight` [num_outputs, hidden_size]."""
        ...


class PlainLayerOps:
    """What is the same in plain torch wherever the model is: all but what attention needs."""

    def __init__(self, linears: Linears) -> None:
        self.linears = linears

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(delta, residual, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_mul(gate_up)

    def head(self, weight: torch.Tensor) -> Linear:
        return self.linears.make(weight, None)


class TorchLayerOps(PlainLayerOps):
    """On a CPU."""

    def __init__(self, rotary: RotaryEmbedding, num_kv_heads: int, linears: Linears) -> None:
        super().__init__(linears)
        self._rotary = rotary
        self._num_kv_heads = num_kv_heads
        self._angles: tuple[torch.Tensor, torch.Tensor] = (rotary.cos[:0], rotary.sin[:0])

    def begin(self, positions: torch.Tensor) -> None:
        self._angles = self._rotary.angles(positions)

    def attend(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        num_rotated = qkv.shape[1] - self._num_kv_heads
        num_heads = num_rotated - self._num_kv_heads
        rotated = norm_rotate(qkv[:, :num_rotated], norm, eps, self._angles)
        return attention.forward(
            rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, num_rotated:], layer_id
        )


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
