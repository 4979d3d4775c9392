"""How one layer of a model attends: what an attention backend is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass

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
