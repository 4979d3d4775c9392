"""What a plan of flashinfer depends on: layers that are alike share one."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch

from worker.engine.layers.attention_backend import AttentionLayer


class LayerKind(NamedTuple):
    """An `AttentionLayer` without tensors, to be a key."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    soft_cap: float | None

    @classmethod
    def of(cls, layer: AttentionLayer) -> Self:
        heads = (layer.num_heads, layer.num_kv_heads, layer.head_dim)
        return cls(*heads, layer.scale, layer.window, layer.soft_cap)

    @property
    def group(self) -> int:
        """Query heads to a KV head."""
        return self.num_heads // self.num_kv_heads

    def plan_options(self, dtype: torch.dtype, kv_dtype: torch.dtype) -> dict[str, Any]:
        """Keywords that the plans of all wrappers take."""
        return {
            "sm_scale": self.scale,
            "window_left": -1 if self.window is None else self.window - 1,
            "logits_soft_cap": self.soft_cap,
            "q_data_type": dtype,
            "kv_data_type": kv_dtype,
        }
