"""The pages of some requests, one's behind the other's, from their rows of the page table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_PAGES = 128


def list_pages(
    page_table: torch.Tensor,  # [num_table_rows, max_pages] int32
    rows: torch.Tensor,  # [num_rows] int64, of the page table
    starts: torch.Tensor,  # [num_rows + 1] int32, of each row in the list
    most_pages: int,  # of a row
    pages: torch.Tensor,  # [starts[-1]] int32, written
) -> None:
    """How many pages each row has is read on the GPU: the host does not wait."""
    grid = (len(rows), triton.cdiv(most_pages, BLOCK_PAGES))
    _list_pages_kernel[grid](
        page_table, rows, starts, pages, page_table.stride(0), BLOCK=BLOCK_PAGES, num_warps=1
    )


@triton.jit
def _list_pages_kernel(
    page_table_ptr, rows_ptr, starts_ptr, pages_ptr, table_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    start = tl.load(starts_ptr + row)
    num_pages = tl.load(starts_ptr + row + 1) - start
    idx = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_page = idx < num_pages
    own = page_table_ptr + tl.load(rows_ptr + row) * table_stride
    tl.store(pages_ptr + start + idx, tl.load(own + idx, mask=is_page), mask=is_page)
