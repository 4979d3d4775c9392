"""Where the keys and values of a request's tokens lie, by the page table."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def paged_places(
    page_table_ptr,
    table_stride,
    row,
    tokens,
    is_token,
    kv_head,
    PAGE_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Where a head's first value is, for each of `tokens` that is one: [num_tokens] int64."""
    pages = tl.load(
        page_table_ptr + row.to(tl.int64) * table_stride + tokens // PAGE_SIZE,
        mask=is_token,
        other=0,
    )
    slots = pages.to(tl.int64) * PAGE_SIZE + tokens % PAGE_SIZE
    return (slots * NUM_KV_HEADS + kv_head) * HEAD_DIM
