"""Attention of one query a request over pages: the keys of a request are split among programs.

Lengths, page table and splits are read on the GPU: a CUDA graph that holds the kernel may be
replayed with others (Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from worker.engine.cuda.batch.attention_tiles import MIN_TILE, decode_rows
from worker.engine.cuda.batch.key_splits import KeySplits
from worker.engine.cuda.kernels.paged_places import paged_places
from worker.engine.layers.attention_backend import AttentionLayer

BLOCK_SPLITS = 16  # of a row, that are merged at a time: most have one
NO_WINDOW = 1 << 30
NO_CHUNK = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class DecodeScratch:
    """What the pieces leave for the merge, for as many as there may be."""

    values: torch.Tensor  # [max_pieces, num_heads, num_values] float32
    log_sums: torch.Tensor  # [max_pieces, num_heads] float32

    @classmethod
    def of(
        cls, max_pieces: int, num_heads: int, num_values: int, device: torch.device
    ) -> DecodeScratch:
        return cls(
            torch.empty(max_pieces, num_heads, num_values, dtype=torch.float32, device=device),
            torch.empty(max_pieces, num_heads, dtype=torch.float32, device=device),
        )


def decode_attention(
    q: torch.Tensor,  # [num_rows, num_heads, head_dim]
    keys: torch.Tensor,  # [num_pages, page_size, num_kv_heads, head_dim]
    values: torch.Tensor,  # as `keys`; of latents they are the keys
    page_table: torch.Tensor,  # [num_rows, max_pages] int32
    seq_lens: torch.Tensor,  # [num_rows] int32, the query's own token included
    layer: AttentionLayer,
    splits: KeySplits,
    scratch: DecodeScratch,
    num_keys: int,  # that a program reads at a time
    output: torch.Tensor,  # [num_rows, num_heads, num_values], but for rows that have no pieces
) -> None:
    """Keys and values of the queries' own tokens are in the pool already."""
    num_rows, num_heads, head_dim = q.shape
    page_size, num_kv_heads = keys.shape[1:3]
    rows = decode_rows(layer)
    block_dim = max(MIN_TILE, triton.next_power_of_2(layer.num_values))
    num_parts = triton.cdiv(layer.group, rows)
    _split_kernel[(len(splits.pieces), num_kv_heads * num_parts)](
        q,
        keys,
        values,
        page_table,
        seq_lens,
        splits.pieces,
        scratch.values,
        scratch.log_sums,
        layer.scale,
        NO_WINDOW if layer.window is None else layer.window,
        NO_CHUNK if layer.chunk is None else layer.chunk,
        layer.soft_cap or 0.0,
        page_table.stride(0),
        GROUP=layer.group,
        NUM_PARTS=num_parts,
        NUM_KV_HEADS=num_kv_heads,
        PAGE_SIZE=page_size,
        HEAD_DIM=head_dim,
        VALUE_DIM=layer.num_values,
        BLOCK_DIM=block_dim,
        BLOCK_REST=max(MIN_TILE, triton.next_power_of_2(head_dim - layer.num_values)),
        ROWS=rows,
        BLOCK_KEYS=num_keys,
        HAS_SOFT_CAP=layer.soft_cap is not None,
        num_warps=4,
        num_stages=3,
    )
    _merge_kernel[(num_rows, num_heads)](
        scratch.values,
        scratch.log_sums,
        splits.ends,
        layer.sinks if layer.sinks is not None else scratch.log_sums,
        output,
        BLOCK_SPLITS=BLOCK_SPLITS,
        VALUE_DIM=layer.num_values,
        BLOCK_DIM=block_dim,
        HAS_SINKS=layer.sinks is not None,
        num_warps=2,
    )


@triton.jit(do_not_specialize=["table_stride"])  # one binary, whatever the longest row
def _split_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    page_table_ptr,
    seq_lens_ptr,
    pieces_ptr,
    split_values_ptr,
    split_log_sums_ptr,
    scale,
    window,
    chunk,
    soft_cap,
    table_stride,
    GROUP: tl.constexpr,
    NUM_PARTS: tl.constexpr,  # of a group
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,  # less than of a key: the key's first are the value
    BLOCK_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
):
    piece = tl.program_id(0)
    kv_head, part = tl.program_id(1) // NUM_PARTS, tl.program_id(1) % NUM_PARTS
    row = tl.load(pieces_ptr + piece * 3)
    split = tl.load(pieces_ptr + piece * 3 + 1)
    num_splits = tl.load(pieces_ptr + piece * 3 + 2)
    if num_splits == 0:
        return
    num_heads = NUM_KV_HEADS * GROUP
    seq_len = tl.load(seq_lens_ptr + row)
    first_seen = tl.maximum((seq_len - 1) // chunk * chunk, seq_len - window)
    blocks = tl.cdiv(seq_len - first_seen, BLOCK_KEYS)
    split_len = tl.cdiv(blocks, num_splits) * BLOCK_KEYS
    start = first_seen + split * split_len
    end = tl.minimum(start + split_len, seq_len)

    heads = part * ROWS + tl.arange(0, ROWS)  # of the query heads that share this KV head
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < VALUE_DIM
    rest = VALUE_DIM + tl.arange(0, BLOCK_REST)
    is_rest = rest < HEAD_DIM
    is_head = heads < GROUP
    q_heads = row.to(tl.int64) * num_heads + kv_head * GROUP + heads
    q = tl.load(
        q_ptr + q_heads[:, None] * HEAD_DIM + dims[None, :],
        mask=is_head[:, None] & is_dim[None, :],
        other=0.0,
    )
    if VALUE_DIM < HEAD_DIM:
        q_rest = tl.load(
            q_ptr + q_heads[:, None] * HEAD_DIM + rest[None, :],
            mask=is_head[:, None] & is_rest[None, :],
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
        # ieee: of float32 all bits count, not those of TF32 alone.
        scores = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision="ieee")
        if VALUE_DIM < HEAD_DIM:
            keys_rest = tl.load(
                keys_ptr + places[:, None] + rest[None, :],
                mask=is_token[:, None] & is_rest[None, :],
                other=0.0,
            )
            scores += tl.dot(q_rest, tl.trans(keys_rest.to(q.dtype)), input_precision="ieee")
        scores = scores.to(tl.float32) * scale
        if HAS_SOFT_CAP:
            scores = soft_cap * (2 * tl.sigmoid(2 * scores / soft_cap) - 1)  # tanh
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_largest[:, None])
        shrink = tl.exp(largest - new_largest)
        values = keys
        if VALUE_DIM == HEAD_DIM:
            values = tl.load(values_ptr + places[:, None] + dims[None, :], mask=is_value, other=0.0)
        acc = acc * shrink[:, None]
        added = tl.dot(weights.to(q.dtype), values.to(q.dtype), input_precision="ieee")
        acc += added.to(tl.float32)
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest
    # A piece without keys counts nothing: its sum is zero.
    is_empty = total == 0.0
    places = piece.to(tl.int64) * num_heads + kv_head * GROUP + heads
    log_sum = tl.where(is_empty, float("-inf"), largest + tl.log(tl.where(is_empty, 1.0, total)))
    tl.store(split_log_sums_ptr + places, log_sum, mask=is_head)
    acc = acc / tl.where(is_empty, 1.0, total)[:, None]
    tl.store(
        split_values_ptr + places[:, None] * VALUE_DIM + dims[None, :],
        acc,
        mask=is_head[:, None] & is_dim[None, :],
    )


@triton.jit
def _merge_kernel(
    split_values_ptr,
    split_log_sums_ptr,
    ends_ptr,
    sinks_ptr,
    output_ptr,
    BLOCK_SPLITS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    num_heads = tl.num_programs(1)
    first, end = tl.load(ends_ptr + row), tl.load(ends_ptr + row + 1)
    if first == end:
        return
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < VALUE_DIM
    largest = float("-inf")
    total = 0.0
    if HAS_SINKS:
        largest = tl.load(sinks_ptr + head).to(tl.float32)
        total = 1.0
    acc = tl.zeros([BLOCK_DIM], tl.float32)
    for start in range(first, end, BLOCK_SPLITS):
        splits = start + tl.arange(0, BLOCK_SPLITS)
        is_split = splits < end
        places = splits.to(tl.int64) * num_heads + head
        log_sums = tl.load(split_log_sums_ptr + places, mask=is_split, other=float("-inf"))
        values = tl.load(
            split_values_ptr + places[:, None] * VALUE_DIM + dims[None, :],
            mask=(is_split & (log_sums > float("-inf")))[:, None] & is_dim[None, :],
            other=0.0,
        )
        # Finite: the first of a row's pieces has keys.
        new_largest = tl.maximum(largest, tl.max(log_sums, axis=0))
        shares = tl.exp(log_sums - new_largest)
        shrink = tl.exp(largest - new_largest)
        acc = acc * shrink + tl.sum(values * shares[:, None], axis=0)
        total = total * shrink + tl.sum(shares, axis=0)
        largest = new_largest
    place = row.to(tl.int64) * num_heads + head
    tl.store(output_ptr + place * VALUE_DIM + dims, acc / total, mask=is_dim)
