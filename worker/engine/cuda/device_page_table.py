"""The page table as the GPU reads it: what changes on the host goes over with the next step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.kv.req_to_token_pool import ReqToTokenPool


class DevicePageTable:
    """A copy of a `ReqToTokenPool`'s table, with one row more: of padding, all its pages.

    Rows are compared with what was sent last: of those that a step reads, some pages at most are
    new, and often none.
    """

    def __init__(
        self, num_rows: int, max_pages: int, padding_page: int, device: torch.device
    ) -> None:
        self.padding_row = num_rows
        self._max_pages = max_pages
        self._pool = ReqToTokenPool(num_rows, max_pages, padding_page)
        shape = (num_rows + 1, max_pages)
        self._sent: npt.NDArray[np.int32] = np.full(shape, padding_page, np.int32)
        self.table = torch.full(shape, padding_page, dtype=torch.int32, device=device)

    def follow(self, pool: ReqToTokenPool) -> None:
        """From now on it is a copy of this one, which has as many rows and pages."""
        assert (pool.num_rows, pool.max_pages) == (self.padding_row, self._max_pages)
        self._pool = pool

    def updates(self, rows: npt.NDArray[np.int64], max_pages: int) -> npt.NDArray[np.int32]:
        """[2, num_changes]: flat places in the table, and their pages; of these rows alone."""
        wanted = self._pool.page_table[rows, :max_pages]
        row_idx, page_idx = np.nonzero(self._sent[rows, :max_pages] != wanted)
        self._sent[rows, :max_pages] = wanted
        places = rows[row_idx] * self._max_pages + page_idx
        return np.stack([places, wanted[row_idx, page_idx]]).astype(np.int32)

    def apply(self, updates: torch.Tensor) -> None:
        """`updates` [2, num_changes] int32, on the device."""
        self.table.view(-1).index_copy_(0, updates[0].long(), updates[1])
