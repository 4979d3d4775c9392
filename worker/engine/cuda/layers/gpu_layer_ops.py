"""The layer operations on a GPU in plain torch: what the kernels are compared with."""

from __future__ import annotations

from typing import cast

import torch

from worker.engine.cuda.attention.gpu_attention import GpuAttention
from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linears, PlainLinears
from worker.engine.models.layer_ops import PlainLayerOps
from worker.engine.models.rotary import RotaryEmbedding


class PlainGpuLayerOps(PlainLayerOps):
    """What comes before attention is part of it here: one kernel takes it all to the KV pool."""

    def __init__(self, rotary: RotaryEmbedding, linears: Linears | None = None) -> None:
        super().__init__(linears or PlainLinears())
        self._rotary = rotary

    def begin(self, positions: torch.Tensor) -> None:
        """The attention knows the positions."""

    def attend(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        gpu_attention = cast(GpuAttention, attention)
        return gpu_attention.forward_qkv(qkv, norm, eps, self._rotary, layer_id)
