"""Attention of one query a request over pages: the keys of a request are split among programs.

Lengths and page table are read on the GPU: nothing is planned on the host, and a CUDA graph that
holds the kernel may be replayed with others (Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from worker.engine.attention.attention_layer import AttentionLayer
from worker.engine.cuda.kernels.paged_places import paged_places

BLOCK_KEYS = 64
MIN_ROWS = 16  # of a matrix product on tensor cores
NO_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class DecodeScratch:
    """What the splits leave for the merge, for as many requests as there may be."""

    values: torch.Tensor  # [max_rows, num_heads, num_splits, head_dim] float32
    log_sums: torch.Tensor  # [max_rows, num_heads, num_splits] float32

    @classmethod
    def of(
        cls, max_rows: int, num_heads: int, num_splits: int, head_dim: int, device: torch.device
    ) -> DecodeScratch:
        shape = (max_rows, num_heads, num_splits)
        return cls(
            torch.empty(*shape, head_dim, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )

    @property
    def num_splits(self) -> int:
        return self.log_sums.shape[2]


def decode_attention(
    q: torch.Tensor,  # [num_rows, num_heads, head_dim]
    keys: torch.Tensor,  # [num_pages, page_size, num_kv_heads, head_dim]
    values: torch.Tensor,
    page_table: torch.Tensor,  # [num_rows, max_pages] int32
    seq_lens: torch.Tensor,  # [num_rows] int32, the query's own token included
    layer: AttentionLayer,
    scratch: DecodeScratch,
    output: torch.Tensor,  # as `q`, written
) -> None:
    """Keys and values of the queries' own tokens are in the pool already."""
    num_rows, num_heads, head_dim = q.shape
    page_size, num_kv_heads = keys.shape[1:3]
    _split_kernel[(num_rows, num_kv_heads, scratch.num_splits)](
        q,
        keys,
        values,
        page_table,
        seq_lens,
        scratch.values,
        scratch.log_sums,
        layer.scale,
        NO_WINDOW if layer.window is None else layer.window,
        layer.soft_cap or 0.0,
        page_table.stride(0),
        NUM_SPLITS=scratch.num_splits,
        GROUP=num_heads // num_kv_heads,
        NUM_KV_HEADS=num_kv_heads,
        PAGE_SIZE=page_size,
        HEAD_DIM=head_dim,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        ROWS=max(MIN_ROWS, triton.next_power_of_2(num_heads // num_kv_heads)),
        BLOCK_KEYS=BLOCK_KEYS,
        HAS_SOFT_CAP=layer.soft_cap is not None,
        num_warps=4,
        num_stages=3,
    )
    _merge_kernel[(num_rows, num_heads)](
        scratch.values,
        scratch.log_sums,
        layer.sinks if layer.sinks is not None else scratch.log_sums,
        output,
        NUM_SPLITS=scratch.num_splits,
        BLOCK_SPLITS=triton.next_power_of_2(scratch.num_splits),
        HEAD_DIM=head_dim,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        HAS_SINKS=layer.sinks is not None,
        num_warps=2,
    )


@triton.jit
def _split_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    page_table_ptr,
    seq_lens_ptr,
    split_values_ptr,
    split_log_sums_ptr,
    scale,
    window,
    soft_cap,
    table_stride,
    NUM_SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
):
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = NUM_KV_HEADS * GROUP
    seq_len = tl.load(seq_lens_ptr + row)
    first_seen = tl.maximum(0, seq_len - window)
    blocks = tl.cdiv(seq_len - first_seen, BLOCK_KEYS)
    split_len = tl.cdiv(blocks, NUM_SPLITS) * BLOCK_KEYS
    start = first_seen + split * split_len
    end = tl.minimum(start + split_len, seq_len)

    heads = tl.arange(0, ROWS)  # of the query heads that share this KV head
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < HEAD_DIM
    is_head = heads < GROUP
    q_heads = row.to(tl.int64) * num_heads + kv_head * GROUP + heads
    q = tl.load(
        q_ptr + q_heads[:, None] * HEAD_DIM + dims[None, :],
        mask=is_head[:, None] & is_dim[None, :],
        other=0.0,
    )
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    for block_start in range(start, end, BLOCK_KEYS):
        tokens = block_start + tl.arange(0, BLOCK_KEYS)
        is_token = tokens < end
        places = paged_places(
            page_table_ptr,
            table_stride,
            row,
            tokens,
            is_token,
            kv_head,
            PAGE_SIZE,
            NUM_KV_HEADS,
            HEAD_DIM,
        )
        is_value = is_token[:, None] & is_dim[None, :]
        keys = tl.load(keys_ptr + places[:, None] + dims[None, :], mask=is_value, other=0.0)
        scores = tl.dot(q, tl.trans(keys.to(q.dtype))).to(tl.float32) * scale
        if HAS_SOFT_CAP:
            scores = soft_cap * (2 * tl.sigmoid(2 * scores / soft_cap) - 1)  # tanh
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_largest[:, None])
        shrink = tl.exp(largest - new_largest)
        values = tl.load(values_ptr + places[:, None] + dims[None, :], mask=is_value, other=0.0)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(q.dtype), values.to(q.dtype)).to(tl.float32)
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest
    # A split without keys counts nothing: its sum is zero.
    is_empty = total == 0.0
    places = q_heads * NUM_SPLITS + split
    log_sum = tl.where(is_empty, float("-inf"), largest + tl.log(tl.where(is_empty, 1.0, total)))
    tl.store(split_log_sums_ptr + places, log_sum, mask=is_head)
    acc = acc / tl.where(is_empty, 1.0, total)[:, None]
    tl.store(
        split_values_ptr + places[:, None] * HEAD_DIM + dims[None, :],
        acc,
        mask=is_head[:, None] & is_dim[None, :],
    )


@triton.jit
def _merge_kernel(
    split_values_ptr,
    split_log_sums_ptr,
    sinks_ptr,
    output_ptr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    head = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_DIM)
    is_split = splits < NUM_SPLITS
    is_dim = dims < HEAD_DIM
    log_sums = tl.load(
        split_log_sums_ptr + place * NUM_SPLITS + splits, mask=is_split, other=float("-inf")
    )
    largest = tl.max(log_sums, axis=0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32)
        largest = tl.maximum(largest, sink)
    shares = tl.exp(log_sums - largest)
    total = tl.sum(shares, axis=0)
    if HAS_SINKS:
        total += tl.exp(sink - largest)
    values = tl.load(
        split_values_ptr + (place * NUM_SPLITS + splits[:, None]) * HEAD_DIM + dims[None, :],
        mask=(is_split & (log_sums > float("-inf")))[:, None] & is_dim[None, :],
        other=0.0,
    )
    merged = tl.sum(values * shares[:, None], axis=0) / total
    tl.store(output_ptr + place * HEAD_DIM + dims, merged, mask=is_dim)
