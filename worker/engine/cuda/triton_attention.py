"""Paged attention by our own Triton kernels: nothing to plan, nothing to compile beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.engine.attention.attention_layer import AttentionLayer
from worker.engine.cuda.gpu_attention import PagedGpuAttention
from worker.engine.cuda.gpu_kv_pool import GpuKVPool
from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention
from worker.engine.cuda.kernels.extend_attention import extend_attention
from worker.engine.cuda.kernels.layer_kernels import rotate_and_append
from worker.engine.models.rotary import RotaryEmbedding

MAX_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 4  # that are in flight on one multiprocessor, about


class TritonAttention(PagedGpuAttention):
    """Splits the keys of few requests among many programs, so that all multiprocessors work."""

    def __init__(
        self, pool: GpuKVPool, layers: Sequence[AttentionLayer], num_processors: int
    ) -> None:
        super().__init__(pool, layers)
        self._num_processors = num_processors

    def forward_qkv(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        rotary: RotaryEmbedding,
        layer_id: int,
    ) -> torch.Tensor:
        q = rotate_and_append(
            qkv,
            norm,
            eps,
            rotary.cos,
            rotary.sin,
            self._batch.positions,
            *self._pool.keys_and_values(layer_id),
            self._batch.out_loc,
        )
        return self._attend(q, layer_id)

    def _attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        batch, layer = self._batch, self._layers[layer_id]
        keys, values = self._pool.keys_and_values(layer_id)
        num_decode = batch.num_decode
        attended: torch.Tensor | None = None
        if num_decode:
            attended = decode_attention(
                q[:num_decode],
                keys,
                values,
                batch.page_table[:num_decode],
                batch.seq_lens[:num_decode],
                layer,
                self._scratch(num_decode, layer, q.device),
            )
        if batch.blocks is None:
            assert attended is not None, "a step has tokens"
            return attended.flatten(1)
        output = torch.empty_like(q)
        if attended is not None:
            output[:num_decode] = attended
        extend_attention(q, keys, values, batch.page_table, batch.blocks, layer, output)
        return output.flatten(1)

    def _scratch(self, num_rows: int, layer: AttentionLayer, device: torch.device) -> DecodeScratch:
        wanted = self._num_processors * PROGRAMS_PER_PROCESSOR
        num_splits = max(1, min(MAX_SPLITS, wanted // (num_rows * layer.num_kv_heads)))
        return DecodeScratch.of(num_rows, layer.num_heads, num_splits, layer.head_dim, device)
