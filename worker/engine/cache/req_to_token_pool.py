"""Rows of running requests, and the KV slots of each, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class ReqToTokenPool:
    """Row -> pages: token `i` of a row lies in slot `page_table[row, i // size] * size + i % size`.

    Entries behind a row's pages hold the padding page: any rectangle of the table may be read.
    """

    def __init__(self, num_rows: int, max_pages: int, padding_page: int) -> None:
        self.num_rows = num_rows
        self.max_pages = max_pages
        self.padding_page = padding_page
        # [num_rows, max_pages] int32
        self.page_table: npt.NDArray[np.int32] = np.full(
            (num_rows, max_pages), padding_page, np.int32
        )
        self._free_rows = list(range(num_rows - 1, -1, -1))
        # Row -> the range of entries that holds all that was written since `take_changes`
        self._changes = dict.fromkeys(range(num_rows), (0, max_pages))

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    def allocate(self) -> int:
        return self._free_rows.pop()

    def free(self, row: int) -> None:
        assert row not in self._free_rows, f"row {row} freed twice"
        self.page_table[row] = self.padding_page
        self._changes[row] = 0, self.max_pages
        self._free_rows.append(row)

    def write_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """`start` is the index of the first of them in the row."""
        end = start + len(pages)
        self.page_table[row, start:end] = pages
        first, last = self._changes.get(row, (start, end))
        self._changes[row] = min(first, start), max(last, end)

    def read_pages(self, row: int, start: int, end: int) -> list[int]:
        pages: list[int] = self.page_table[row, start:end].tolist()
        return pages

    def take_changes(self) -> dict[int, tuple[int, int]]:
        """Rows that were written since the last call, each with [start, end): all before, the first
        time. For a copy on a device; without one it stays small, too.
        """
        changes, self._changes = self._changes, {}
        return changes


class PageTables(NamedTuple):
    """The page tables of the rows of one scheduler."""

    all: ReqToTokenPool
    windows: ReqToTokenPool | None = None  # of layers with a window; None: these have no others
