"""Paged attention by our own Triton kernels: nothing that must be compiled beforehand.

What is planned is which program does what. It lies in tensors that stay where they are, so that
kernels in CUDA graphs find it, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from worker.engine.cuda.batch.attention_tiles import decode_keys, extend_keys
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.batch.key_splits import KeySplits, count_splits, list_pieces
from worker.engine.cuda.batch.query_blocks import (
    QueryBlocks,
    block_queries,
    cut_queries,
    most_blocks,
)
from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention
from worker.engine.cuda.kernels.extend_attention import extend_attention
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.device.gpu_device import GpuDevice, upload_to
from worker.engine.layers.attention_backend import AttentionLayer

PROGRAMS_PER_PROCESSOR = 4  # that are in flight on one multiprocessor, about


class TritonDecode:
    """Splits the keys of few or of long requests, so that all multiprocessors have work."""

    def __init__(
        self,
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
        device: GpuDevice,
        dtype: torch.dtype,  # of the queries
        max_rows: int,
    ) -> None:
        self._pool = pool
        self._layers = layers
        self._device = device
        self._num_keys = [decode_keys(layer, dtype, device.capability) for layer in layers]
        num_programs = device.num_processors * PROGRAMS_PER_PROCESSOR
        fewest_heads = min(layer.num_kv_heads for layer in layers)
        self._num_wanted = max(1, num_programs // fewest_heads)
        on_device = device.torch_device
        max_pieces = max_rows + self._num_wanted
        self._pieces = torch.zeros(max_pieces, 3, dtype=torch.int32, device=on_device)
        self._ends = torch.zeros(max_rows + 1, dtype=torch.int32, device=on_device)
        self._scratch = DecodeScratch.of(
            max_pieces,
            max(layer.num_heads for layer in layers),
            max(layer.num_values for layer in layers),
            on_device,
        )
        self._splits = np.zeros(0, np.int64)  # that the tensors above have

    def plan(self, rows: StepRows) -> None:
        """Mostly nothing: the splits are those of the last step, lengths are read on the GPU."""
        splits = count_splits(rows.seq_lens[: rows.num_decode], self._num_wanted)
        if not len(splits) or np.array_equal(splits, self._splits):
            return
        pieces, ends = list_pieces(splits, len(splits) + self._num_wanted)
        upload_to(self._device, self._pieces[: len(pieces)], pieces)
        upload_to(self._device, self._ends[: len(ends)], ends.astype(np.int32))
        self._splits = splits

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        num_rows = batch.num_decode
        decode_attention(
            q[:num_rows],
            *self._pool.keys_and_values(layer_id),
            batch.page_table[:num_rows],
            batch.seq_lens[:num_rows],
            self._layers[layer_id],
            KeySplits(self._pieces[: num_rows + self._num_wanted], self._ends[: num_rows + 1]),
            self._scratch,
            self._num_keys[layer_id],
            output[:num_rows],
        )


class TritonExtend:
    """Cuts prefill chunks into blocks of queries."""

    def __init__(
        self,
        pool: GpuKVPool,
        layers: Sequence[AttentionLayer],
        device: GpuDevice,
        dtype: torch.dtype,  # of the queries
        max_rows: int,
        max_tokens: int,
    ) -> None:
        self._pool = pool
        self._layers = layers
        self._device = device
        self._num_keys = [extend_keys(layer, dtype, device.capability) for layer in layers]
        self._num_queries = min(block_queries(layer, dtype) for layer in layers)
        # A graph has rows for as many that decode, for as many chunks, and one of padding.
        most = most_blocks(2 * max_rows + 1, max_tokens, self._num_queries)
        self._table = torch.zeros(most, 4, dtype=torch.int32, device=device.torch_device)
        self._num_blocks = 0  # of the step

    def plan(self, rows: StepRows) -> None:
        if rows.num_decode == rows.num_rows:
            return
        table = cut_queries(rows, self._num_queries)
        if rows.in_graph:  # as many as any step that it runs may have; those behind are empty
            num_behind = rows.num_rows - rows.num_decode
            num_tokens = int(rows.query_lens.sum())
            most = most_blocks(num_behind, num_tokens, self._num_queries)
            table = np.concatenate([table, np.zeros((most - len(table), 4), np.int32)])
        self._num_blocks = len(table)
        upload_to(self._device, self._table[: len(table)], table)

    def attend(self, q: torch.Tensor, batch: GpuBatch, layer_id: int, output: torch.Tensor) -> None:
        extend_attention(
            q,
            *self._pool.keys_and_values(layer_id),
            batch.page_table,
            QueryBlocks(self._table[: self._num_blocks], self._num_queries),
            self._layers[layer_id],
            self._num_keys[layer_id],
            output,
        )
