"""Prefill chunks cut into blocks of queries: one program of the extend kernel each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.cuda.batch.attention_tiles import extend_rows
from worker.engine.cuda.batch.gpu_batch import StepRows
from worker.engine.layers.attention_backend import AttentionLayer


@dataclass(frozen=True, slots=True, eq=False)
class QueryBlocks:
    """Which queries each block has. One without any is nobody's."""

    table: torch.Tensor  # [num_blocks, 4] int32: row, first token, its position, how many
    num_queries: int  # of a full block

    @property
    def num_blocks(self) -> int:
        return len(self.table)


def cut_queries(rows: StepRows, num_queries: int) -> npt.NDArray[np.int32]:
    """The table of `QueryBlocks`, of the rows behind those that decode.

    The longest work comes first, so that none is left at the end.
    """
    behind = slice(rows.num_decode, None)
    lens = (rows.query_lens.cumsum(), rows.query_lens, rows.seq_lens)
    each = zip(*(values[behind].tolist() for values in lens), strict=True)
    blocks = [
        (row, end - query_len + start, seq_len - query_len + start, query_len - start)
        for row, (end, query_len, seq_len) in enumerate(each, rows.num_decode)
        for start in range(0, query_len, num_queries)
    ]
    table = np.array(blocks, np.int32).reshape(-1, 4)
    np.minimum(table[:, 3], num_queries, out=table[:, 3])
    return table[np.argsort(-table[:, 2], kind="stable")]


def block_queries(layer: AttentionLayer, dtype: torch.dtype) -> int:
    """The queries of a full block: each has a row for every head that shares its KV head."""
    return max(1, extend_rows(layer, dtype) // layer.group)


def most_blocks(num_rows: int, num_tokens: int, num_queries: int) -> int:
    """The most blocks that rows with so many tokens together have."""
    return num_rows + num_tokens // num_queries
