"""Has flashinfer's wrappers plan a step's rows, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from worker.engine.cuda.batch.gpu_batch import StepRows
from worker.engine.cuda.kernels.page_lists import list_pages
from worker.engine.device.gpu_device import GpuDevice, Moment, to_pinned
from worker.engine.request.token_ranges import Ints


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """A step's rows as flashinfer plans by them: queries and pages, each row's behind another's.

    All int32, on the host, in memory that is copied without waiting.
    """

    qo_indptr: torch.Tensor  # [num_rows + 1]: queries [qo_indptr[i], qo_indptr[i + 1]) are row i's
    kv_indptr: torch.Tensor  # [num_rows + 1]: the same of pages, in a list of all rows' pages
    last_page_len: torch.Tensor  # [num_rows]: tokens in the last page, 1 to page_size
    seq_lens: torch.Tensor  # [num_rows]
    max_pages: int  # of a row

    @classmethod
    def of(cls, device: GpuDevice, rows: StepRows, page_size: int) -> Self:
        """There are some."""

        def host(values: Ints) -> torch.Tensor:
            return to_pinned(device, values.astype(np.int32))

        num_pages = -(-rows.seq_lens // page_size)
        return cls(
            host(np.concatenate([[0], rows.query_lens.cumsum()])),
            host(np.concatenate([[0], num_pages.cumsum()])),
            host(rows.seq_lens - (num_pages - 1) * page_size),
            host(rows.seq_lens),
            int(num_pages.max()),
        )

    @property
    def num_pages(self) -> int:
        """The pages of all rows; one that several share counts for each."""
        return int(self.kv_indptr[-1])


class PlannedRows(NamedTuple):
    """What a wrapper plans by."""

    plan: PagedPlan
    pages: torch.Tensor  # [plan.num_pages] int32, on the GPU


class RowPlanner:
    """A wrapper copies its plan to the GPU from host memory that its next plan overwrites."""

    def __init__(self, device: GpuDevice, page_size: int) -> None:
        self._device = device
        self._page_size = page_size
        self._copied: Moment | None = None

    @contextmanager
    def planning(self, rows: StepRows, pages: torch.Tensor | None = None) -> Iterator[PlannedRows]:
        """Inside, wrappers plan. `pages` is room for them that is large enough, where it matters.

        Waits for the copy before: with one step in flight that is done, or about to be.
        """
        plan = PagedPlan.of(self._device, rows, self._page_size)
        device = self._device.torch_device
        if pages is None:
            pages = torch.empty(plan.num_pages, dtype=torch.int32, device=device)
        starts = plan.kv_indptr.to(device, non_blocking=True)
        list_pages(rows.page_table, rows.rows, starts, plan.max_pages, pages)
        if self._copied is not None:
            self._copied.wait()
        yield PlannedRows(plan, pages[: plan.num_pages])
        self._copied = self._device.mark()
