"""Has flashinfer's wrappers plan a step's rows, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from worker.engine.cuda.attention.paged_plan import PagedPlan
from worker.engine.cuda.batch.step_rows import StepRows
from worker.engine.cuda.kernels.page_lists import list_pages
from worker.engine.device.gpu_device import GpuDevice, Moment


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
