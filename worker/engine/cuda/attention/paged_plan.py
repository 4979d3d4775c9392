"""Rows of a step as flashinfer plans by them: queries and pages, each row's behind another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from worker.engine.cuda.batch.step_rows import StepRows
from worker.engine.device.gpu_device import GpuDevice, to_pinned
from worker.engine.request.token_ranges import Ints


@dataclass(frozen=True, slots=True, eq=False)
class PagedPlan:
    """All int32, on the host, in memory that is copied without waiting."""

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
        """Of all rows; a page that several share counts for each."""
        return int(self.kv_indptr[-1])
