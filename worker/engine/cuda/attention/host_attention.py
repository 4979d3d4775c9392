"""Attention of ranks on a CPU: the CPU's own, told of steps that are planned as for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.engine.cpu.forward_batch import ForwardBatch, ForwardMode
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.layers.attention_backend import AttentionLayer


class HostAttention:
    """A `StepAttention` whose rows have the same bits in any company, as one process gives them."""

    def __init__(self, pool: KVCachePool, layers: Sequence[AttentionLayer]) -> None:
        self._attention = TorchAttentionBackend(pool, layers)
        self._planned: StepRows | None = None

    def plan(self, rows: StepRows) -> None:
        self._planned = rows

    def begin(self, batch: GpuBatch) -> None:
        rows = self._planned
        assert rows is not None, "plan() comes first"
        (present,) = rows.query_lens.nonzero()  # rows of nobody have no token
        query_lens = rows.query_lens[present].tolist()
        self._attention.plan(
            ForwardBatch(
                forward_mode=ForwardMode.DECODE if max(query_lens) == 1 else ForwardMode.EXTEND,
                input_ids=batch.input_ids,
                positions=batch.positions,
                out_loc=batch.out_loc,
                query_lens=query_lens,
                seq_lens=rows.seq_lens[present].tolist(),
                page_table=batch.page_table[torch.from_numpy(present)],
                sample_idx=batch.positions[:0],  # attention has no use for it
            )
        )

    def forward(
        self, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, layer_id: int
    ) -> torch.Tensor:
        return self._attention.forward(q, k, v, layer_id)
