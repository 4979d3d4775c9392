"""Paged attention by our own Triton kernels: nothing to plan, nothing to compile beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.engine.attention.attention_layer import AttentionLayer
from worker.engine.cuda.gpu_batch import GpuBatch
from worker.engine.cuda.gpu_kv_pool import GpuKVPool
from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention
from worker.engine.cuda.kernels.extend_attention import extend_attention
from worker.engine.cuda.step_rows import StepRows

MAX_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 4  # that are in flight on one multiprocessor, about


class TritonDecode:
    """Splits the keys of few requests among many programs, so that all multiprocessors work."""

    def __init__(
        self, pool: GpuKVPool, layers: Sequence[AttentionLayer], num_processors: int
    ) -> None:
        self._pool = pool
        self._layers = layers
        self._num_processors = num_processors

    def plan(self, rows: StepRows) -> None:
        """Nothing: lengths and pages are read on the GPU."""

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        layer, num_rows = self._layers[layer_id], batch.num_decode
        decode_attention(
            q[:num_rows],
            *self._pool.keys_and_values(layer_id),
            batch.page_table[:num_rows],
            batch.seq_lens[:num_rows],
            layer,
            self._scratch(num_rows, layer, q.device),
            output[:num_rows],
        )

    def _scratch(self, num_rows: int, layer: AttentionLayer, device: torch.device) -> DecodeScratch:
        wanted = self._num_processors * PROGRAMS_PER_PROCESSOR
        num_splits = max(1, min(MAX_SPLITS, wanted // (num_rows * layer.num_kv_heads)))
        return DecodeScratch.of(num_rows, layer.num_heads, num_splits, layer.head_dim, device)


class TritonExtend:
    """By the blocks of queries that came with the batch."""

    def __init__(self, pool: GpuKVPool, layers: Sequence[AttentionLayer]) -> None:
        self._pool = pool
        self._layers = layers

    def plan(self, rows: StepRows) -> None:
        """Nothing: lengths and pages are read on the GPU."""

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        assert batch.blocks is not None, "the batch has rows of several tokens"
        extend_attention(
            q,
            *self._pool.keys_and_values(layer_id),
            batch.page_table,
            batch.blocks,
            self._layers[layer_id],
            output,
        )
