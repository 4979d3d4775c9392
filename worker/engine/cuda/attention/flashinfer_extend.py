"""Prefill attention by flashinfer's fa2 or fa3 kernels, planned on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

from worker.engine.cuda.attention.layer_kind import LayerKind
from worker.engine.cuda.attention.row_planner import RowPlanner
from worker.engine.cuda.batch.gpu_batch import GpuBatch
from worker.engine.cuda.batch.step_rows import StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer


class FlashinferExtend:
    """A wrapper for each kind of layers. Not in CUDA graphs: the plan decides on its grid."""

    def __init__(
        self,
        backend: Literal["fa2", "fa3"],
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
        device: GpuDevice,
        dtype: torch.dtype,
        floats: torch.Tensor,  # [num_bytes] uint8, for what parts of a row leave to be merged
    ) -> None:
        self._pool = pool
        self._dtype = dtype
        self._kinds = [LayerKind.of(layer) for layer in layers]
        self._planner = RowPlanner(device, pool.page_size)
        self._wrappers: dict[LayerKind, Any] = {
            kind: BatchPrefillWithPagedKVCacheWrapper(floats, "NHD", backend=backend)
            for kind in dict.fromkeys(self._kinds)
        }

    def plan(self, rows: StepRows) -> None:
        rows = rows.extending
        if not rows.num_rows:
            return
        assert not rows.in_graph, "a CUDA graph cannot hold it"
        with self._planner.planning(rows) as (plan, pages):
            for kind, wrapper in self._wrappers.items():
                wrapper.plan(
                    plan.qo_indptr,
                    plan.kv_indptr,
                    pages,
                    plan.last_page_len,
                    kind.num_heads,
                    kind.num_kv_heads,
                    kind.head_dim,
                    self._pool.page_size,
                    causal=True,
                    seq_lens=plan.seq_lens,
                    **kind.plan_options(self._dtype, self._pool.dtype),
                )

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        own = slice(batch.num_decode, None)
        self._wrappers[self._kinds[layer_id]].run(
            q[own], self._pool.keys_and_values(layer_id), out=output[own]
        )
