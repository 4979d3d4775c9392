"""Prefill chunks cut into blocks of queries: one program of the extend kernel each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

BLOCK_QUERIES = 32


@dataclass(frozen=True, slots=True, eq=False)
class QueryBlocks:
    """Which queries each block has."""

    table: torch.Tensor  # [num_blocks, 4] int32: row, first token, its position, how many
    num_queries: int  # of a full block

    @property
    def num_blocks(self) -> int:
        return len(self.table)


def cut_queries(
    rows: Sequence[int],  # of the page table
    first_tokens: Sequence[int],  # of each row, among the step's tokens
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    num_queries: int,
) -> npt.NDArray[np.int32]:
    """The table of `QueryBlocks`. The longest work comes first, so that none is left at the end."""
    blocks = [
        (row, first + start, seq_len - query_len + start, min(num_queries, query_len - start))
        for row, first, query_len, seq_len in zip(
            rows, first_tokens, query_lens, seq_lens, strict=True
        )
        for start in range(0, query_len, num_queries)
    ]
    blocks.sort(key=lambda block: -block[2])
    return np.array(blocks, np.int32).reshape(-1, 4)
