"""Decode attention by flashinfer's xqa, which reads lengths and pages on the GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from flashinfer.decode import xqa_batch_decode_with_kv_cache

from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer

SEMAPHORE_BYTES = 8 << 20  # in front of the workspace: zero when nobody runs
SCRATCH_BYTES = 32 << 20


class XqaDecode:
    """Nothing is planned. Its kernel is compiled for the page size and the heads of a group."""

    def __init__(
        self, pool: GpuKVPool, layers: Sequence[AttentionLayer], device: GpuDevice
    ) -> None:
        self._pool = pool
        self._layers = layers
        self._workspace = torch.zeros(
            SEMAPHORE_BYTES + SCRATCH_BYTES, dtype=torch.uint8, device=device.torch_device
        )

    def plan(self, rows: StepRows) -> None:
        """Nothing."""

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        layer, num_rows = self._layers[layer_id], batch.num_decode
        page_table = _whole_rows(batch.page_table[:num_rows])
        xqa_batch_decode_with_kv_cache(
            q[:num_rows],
            self._pool.keys_and_values(layer_id),
            self._workspace,
            page_table,
            batch.seq_lens[:num_rows],
            page_table.shape[1] * self._pool.page_size,
            bmm1_scale=layer.scale,
            bmm2_scale=1.0,
            window_left=-1 if layer.window is None else layer.window - 1,
            out=output[:num_rows],
            sinks=layer.sinks,
            kv_layout="NHD",
        )


def _whole_rows(page_table: torch.Tensor) -> torch.Tensor:
    """xqa takes no rows with gaps between them: these are as long as they lie in memory."""
    return page_table.as_strided((len(page_table), page_table.stride(0)), page_table.stride())
