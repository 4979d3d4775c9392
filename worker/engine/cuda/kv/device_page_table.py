"""The page table as the GPU reads it: what changes on the host goes over with the next step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.request.token_ranges import ranges_before


class DevicePageTable:
    """A copy of a `ReqToTokenPool`'s table, with one row more: of padding, all its pages.

    What a step costs depends on what was written since the last one, not on the table's size: some
    pages at most are new, and often none.
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

    def updates(self) -> npt.NDArray[np.int32]:
        """[2, num_changes] since the last call: flat places in the table, and their pages."""
        changes = self._pool.take_changes()
        if not changes:
            return np.empty((2, 0), np.int32)
        rows = np.array(list(changes), np.int64)
        ranges = np.array(list(changes.values()), np.int64)
        lens = ranges[:, 1] - ranges[:, 0]
        places = ranges_before(rows * self._max_pages + ranges[:, 1], lens, lens.cumsum())
        # What was written is often what was there: a page that went to the cache, and stays.
        sent, wanted = self._sent.reshape(-1), self._pool.page_table.reshape(-1)[places]
        is_new = sent[places] != wanted
        places, wanted = places[is_new], wanted[is_new]
        sent[places] = wanted
        return np.stack([places, wanted]).astype(np.int32)

    def apply(self, updates: torch.Tensor) -> None:
        """`updates` [2, num_changes] int32, on the device."""
        self.table.view(-1).index_copy_(0, updates[0].long(), updates[1])
