"""The layer operations on a GPU in plain torch: what the kernels are compared with."""

from __future__ import annotations

from typing import cast

import torch

from worker.engine.cuda.attention.gpu_attention import GpuAttention
from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linears, PlainLinears
from worker.engine.models.layer_ops import PlainLayerOps, attend_rotated
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.norms import HeadNorm


class PlainGpuLayerOps(PlainLayerOps):
    """What comes before attention is part of it here: one kernel takes it all to the KV pool.

    Llama's and Qwen 3's, that is; what other families do there is plain torch.
    """

    def __init__(
        self, ropes: LayerRopes, num_kv_heads: int, linears: Linears | None = None
    ) -> None:
        super().__init__(ropes, num_kv_heads, linears or PlainLinears())

    def attend(
        self,
        qkv: torch.Tensor,
        norm: HeadNorm | None,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        rotary = self._ropes.rotary(layer_id)
        if rotary is None or not (norm is None or norm.is_plain):
            angles = self.angles(layer_id)
            return attend_rotated(qkv, self._num_kv_heads, norm, angles, layer_id, attention)
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return cast(GpuAttention, attention).forward_qkv(qkv, weight, eps, rotary, layer_id)
