"""Paged attention by kernels: one writes to the pool, two attend, or one alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from worker.engine.cuda.attention.gpu_attention import AttentionPart, PagedGpuAttention
from worker.engine.cuda.attention.triton_attention import TritonExtend
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kernels.layer_kernels import rotate_and_append
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.rotary import RotaryEmbedding


class KernelAttention(PagedGpuAttention):
    """Norms, rotation and the way to the pool are our Triton kernel, whichever attends."""

    def __init__(
        self,
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
        decode: AttentionPart,
        extend: AttentionPart,
    ) -> None:
        super().__init__(pool, layers)
        self._decode = decode
        self._extend = extend

    def plan(self, rows: StepRows) -> None:
        self._decode.plan(rows)
        self._extend.plan(rows)

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
        batch = self._batch
        output = torch.empty_like(q)
        if batch.num_decode:
            self._decode.attend(q, batch, layer_id, output)
        if batch.num_decode < len(batch.seq_lens):
            self._extend.attend(q, batch, layer_id, output)
        return output.flatten(1)


class FixedAttention(KernelAttention):
    """A token's bits depend on nothing but the tokens before it.

    All rows are blocks of queries to the kernel for prefill, those that decode as well. That kernel
    goes over the keys from position 0 on (or from the window's beginning), in blocks that begin at
    multiples of one number: where a chunk begins, and which queries share its block, changes
    neither a block of keys nor their order. Blocks that a query sees nothing of leave its sums as
    they are: their weights are zeros, and the largest score stays the largest.
    """

    def __init__(
        self, pool: GpuKVPool, layers: Sequence[AttentionLayer], extend: TritonExtend
    ) -> None:
        super().__init__(pool, layers, extend, extend)

    def plan(self, rows: StepRows) -> None:
        self._extend.plan(dataclasses.replace(rows, num_decode=0))

    def begin(self, batch: GpuBatch) -> None:
        super().begin(dataclasses.replace(batch, num_decode=0))
