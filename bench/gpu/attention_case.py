"""Requests as attention finds them in a step: pages that are mixed up, full of noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from bench.gpu.backends import BACKENDS
from worker.engine.cuda.attention.gpu_attention import GpuAttention
from worker.engine.cuda.attention.plain_attention import PlainAttention
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.request.step_limits import StepLimits


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCase:
    """One step; those that decode come first."""

    layer: AttentionLayer
    num_layers: int  # that are like it, each with keys and values of its own
    pool: GpuKVPool
    rows: StepRows
    batch: GpuBatch
    q: torch.Tensor  # [num_tokens, num_heads, head_dim]
    k: torch.Tensor  # [num_tokens, num_kv_heads, head_dim]
    v: torch.Tensor

    @classmethod
    def make(
        cls,
        layer: AttentionLayer,
        seq_lens: Sequence[int],
        query_lens: Sequence[int],
        *,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_layers: int = 1,
        in_graph: bool = False,
    ) -> Self:
        num_pages = [-(-seq_len // page_size) for seq_len in seq_lens]
        layout = KVLayout.of([layer] * num_layers, dtype, page_size)
        pool = GpuKVPool(layout, sum(num_pages), device)
        for layer_id in range(num_layers):
            for data in pool.keys_and_values(layer_id):
                data.normal_()
        page_table = torch.full((len(seq_lens), max(num_pages)), pool.num_pages, dtype=torch.int32)
        shuffled = torch.randperm(pool.num_pages, dtype=torch.int32).split(num_pages)
        for row, pages in enumerate(shuffled):
            page_table[row, : len(pages)] = pages
        batch = _batch(page_table, seq_lens, query_lens, page_size, device)
        rows = StepRows(
            batch.num_decode,
            np.array(query_lens),
            np.array(seq_lens),
            torch.arange(len(seq_lens), device=device),
            batch.page_table,
            in_graph,
        )

        def noise(num_heads: int) -> torch.Tensor:
            shape = (sum(query_lens), num_heads, layer.head_dim)
            return torch.empty(shape, dtype=dtype, device=device).normal_()

        q, k, v = noise(layer.num_heads), noise(layer.num_kv_heads), noise(layer.num_kv_heads)
        return cls(layer, num_layers, pool, rows, batch, q, k, v)

    @property
    def layers(self) -> Sequence[AttentionLayer]:
        return [self.layer] * self.num_layers

    def attention(self, name: str, device: GpuDevice) -> GpuAttention:
        """By a backend of this name."""
        if name == "torch":
            return PlainAttention(self.pool, self.layers)
        from worker.engine.cuda.attention.attention_kernels import AttentionKernels

        step = StepLimits(len(self.rows.seq_lens), len(self.q), has_overlap=True)
        backend: Any = BACKENDS[name]
        return AttentionKernels(device, step, self.q.dtype).make(
            backend.decode or "triton", backend.prefill or "triton", self.pool, self.layers
        )

    def run(self, attention: GpuAttention) -> torch.Tensor:
        """Writes keys and values, and attends: [num_tokens, num_heads * head_dim] of layer 0."""
        attention.plan(self.rows)
        attention.begin(self.batch)
        return attention.forward(self.q, self.k, self.v, 0)

    def attended(self) -> torch.Tensor:
        """The same in float32 and in plain torch, of what is in the pool behind `run`."""
        layer, page_size = self.layer, self.pool.page_size
        group = layer.num_heads // layer.num_kv_heads
        outputs = []
        seq_lens, query_lens = self.rows.seq_lens.tolist(), self.rows.query_lens.tolist()
        for row, q in enumerate(self.q.float().split(query_lens)):
            num_pages = -(-seq_lens[row] // page_size)
            pages = self.batch.page_table[row, :num_pages].long()
            keys, values = (
                data[pages].flatten(0, 1)[: seq_lens[row]].float().repeat_interleave(group, dim=1)
                for data in self.pool.keys_and_values(0)
            )
            scores = torch.einsum("qhd,khd->hqk", q, keys) * layer.scale
            is_hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
            scores.masked_fill_(is_hidden.triu(1 + seq_lens[row] - len(q)), -torch.inf)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        return torch.cat(outputs).flatten(1)

    @property
    def num_bytes(self) -> int:
        """Of keys and values that decode steps of all layers read."""
        layer = self.layer
        values = 2 * self.num_layers * layer.num_kv_heads * layer.head_dim
        return int(self.rows.seq_lens.sum()) * values * self.k.itemsize


def _batch(
    page_table: torch.Tensor,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    page_size: int,
    device: torch.device,
) -> GpuBatch:
    positions = torch.cat(
        [
            torch.arange(seq_len - query_len, seq_len)
            for seq_len, query_len in zip(seq_lens, query_lens, strict=True)
        ]
    )
    token_rows = torch.arange(len(seq_lens)).repeat_interleave(torch.tensor(query_lens))
    num_decode = sum(query_len == 1 for query_len in query_lens)
    assert all(query_len == 1 for query_len in query_lens[:num_decode]), "those come first"
    slots = page_table[token_rows, positions // page_size].long() * page_size
    return GpuBatch(
        input_ids=torch.zeros_like(positions, device=device),
        positions=positions.to(device),
        out_loc=(slots + positions % page_size).to(device),
        token_rows=token_rows.to(device),
        num_decode=num_decode,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        page_table=page_table.to(device),
    )
