"""A step's rows as the host knows them when it launches it: what attention may plan by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.engine.request.token_ranges import Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows are requests, those of one token first; in a CUDA graph also those of padding."""

    num_decode: int  # rows of one token
    query_lens: Ints  # [num_rows]
    seq_lens: Ints  # [num_rows], tokens of each in the KV pool after this step
    rows: torch.Tensor  # [num_rows] int64, of `page_table`; on the device
    page_table: torch.Tensor  # [num_table_rows, max_pages] int32, on the device
    in_graph: bool = False  # a graph that was captured for so many rows runs them

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)

    @property
    def decoding(self) -> StepRows:
        return self._part(self.num_decode, slice(self.num_decode))

    @property
    def extending(self) -> StepRows:
        """Those behind them."""
        return self._part(0, slice(self.num_decode, None))

    def _part(self, num_decode: int, part: slice) -> StepRows:
        return StepRows(
            num_decode,
            self.query_lens[part],
            self.seq_lens[part],
            self.rows[part],
            self.page_table,
            self.in_graph,
        )
