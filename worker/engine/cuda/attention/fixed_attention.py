"""Paged attention in which a token's bits depend on nothing but the tokens before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from worker.engine.cuda.attention.kernel_attention import KernelAttention
from worker.engine.cuda.attention.triton_attention import TritonExtend
from worker.engine.cuda.batch.gpu_batch import GpuBatch
from worker.engine.cuda.batch.step_rows import StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.layers.attention_backend import AttentionLayer


class FixedAttention(KernelAttention):
    """All rows are blocks of queries to the kernel for prefill, those that decode as well.

    That kernel goes over the keys from position 0 on (or from the window's beginning), in blocks
    that begin at multiples of one number: where a chunk begins, and which queries share its block,
    changes neither a block of keys nor their order. Blocks that a query sees nothing of leave its
    sums as they are: their weights are zeros, and the largest score stays the largest.
    """

    def __init__(
        self, pool: GpuKVPool, layers: Sequence[AttentionLayer], extend: TritonExtend
    ) -> None:
        super().__init__(pool, layers, extend, extend)

    def plan(self, rows: StepRows) -> None:
        self._extend.plan(dataclasses.replace(rows, num_decode=0))

    def begin(self, batch: GpuBatch) -> None:
        super().begin(dataclasses.replace(batch, num_decode=0))
