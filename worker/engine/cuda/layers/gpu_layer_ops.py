"""The layer operations on a GPU in plain torch: what the kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from worker.engine.cuda.attention.gpu_attention import GpuAttention
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.linear import HeadProducts, Linear, Linears, PlainLinears
from worker.engine.models.layer_ops import PlainLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.norms import HeadNorm


class PlainGpuLayerOps(PlainLayerOps):
    """What comes before attention is part of it here: one kernel takes it all to the KV pool.

    Llama's and Qwen 3's, that is; what other families do there is plain torch.
    """

    def __init__(
        self, ropes: LayerRopes, layers: Sequence[AttentionLayer], linears: Linears | None = None
    ) -> None:
        super().__init__(ropes, layers, linears or PlainLinears())

    def by_head(self, weights: torch.Tensor) -> Linear:
        return HeadProducts(weights)

    def attend(
        self,
        qkv: torch.Tensor,
        norm: HeadNorm | None,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        rotary = self._ropes.rotary(layer_id)
        has_keys = self._layers[layer_id].kv_layer_id is None
        if rotary is None or not has_keys or not (norm is None or norm.is_plain):
            return self.attend_in_torch(qkv, norm, layer_id, attention)
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return cast(GpuAttention, attention).forward_qkv(qkv, weight, eps, rotary, layer_id)
