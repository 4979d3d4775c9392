"""Attention of prefill chunks over pages: blocks of queries, each over all that it may see.

Online softmax over blocks of keys (FlashAttention-2, Dao 2023). The query heads that share a KV
head are rows of one matrix, so that its keys are read once for all of them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from worker.engine.cuda.batch.attention_tiles import MIN_TILE, extend_heads
from worker.engine.cuda.batch.query_blocks import QueryBlocks
from worker.engine.cuda.kernels.decode_attention import NO_CHUNK, NO_WINDOW
from worker.engine.cuda.kernels.paged_places import paged_places
from worker.engine.layers.attention_backend import AttentionLayer


def extend_attention(
    q: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_pages, page_size, num_kv_heads, head_dim]
    values: torch.Tensor,  # as `keys`; of latents they are the keys
    page_table: torch.Tensor,  # [num_rows, max_pages] int32
    blocks: QueryBlocks,
    layer: AttentionLayer,
    num_keys: int,  # that a program reads at a time
    output: torch.Tensor,  # [num_tokens, num_heads, num_values], written where the blocks say
) -> None:
    """Keys and values of the queries' own tokens are in the pool already."""
    head_dim = q.shape[-1]
    page_size, num_kv_heads = keys.shape[1:3]
    num_heads = extend_heads(layer, q.dtype)  # of a program
    num_parts = triton.cdiv(layer.group, num_heads)
    _extend_kernel[(blocks.num_blocks, num_kv_heads * num_parts)](
        q,
        keys,
        values,
        page_table,
        blocks.table,
        layer.sinks if layer.sinks is not None else q,
        output,
        layer.scale,
        NO_WINDOW if layer.window is None else layer.window,
        NO_CHUNK if layer.chunk is None else layer.chunk,
        layer.soft_cap or 0.0,
        page_table.stride(0),
        GROUP=layer.group,
        HEADS=num_heads,
        NUM_PARTS=num_parts,
        NUM_KV_HEADS=num_kv_heads,
        PAGE_SIZE=page_size,
        HEAD_DIM=head_dim,
        VALUE_DIM=layer.num_values,
        BLOCK_DIM=max(MIN_TILE, triton.next_power_of_2(layer.num_values)),
        BLOCK_REST=max(MIN_TILE, triton.next_power_of_2(head_dim - layer.num_values)),
        BLOCK_QUERIES=blocks.num_queries,
        ROWS=max(MIN_TILE, triton.next_power_of_2(blocks.num_queries * num_heads)),
        BLOCK_KEYS=num_keys,
        HAS_LIMIT=layer.window is not None or layer.chunk is not None,
        HAS_SOFT_CAP=layer.soft_cap is not None,
        HAS_SINKS=layer.sinks is not None,
        LOG2_E=math.log2(math.e),
        num_warps=8,
        num_stages=2,
    )


@triton.jit(do_not_specialize=["table_stride"])  # one binary, whatever the longest row
def _extend_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    page_table_ptr,
    blocks_ptr,
    sinks_ptr,
    output_ptr,
    scale,
    window,
    chunk,
    soft_cap,
    table_stride,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,  # of a group, in a program
    NUM_PARTS: tl.constexpr,  # of a group
    NUM_KV_HEADS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,  # less than of a key: the key's first are the value
    BLOCK_DIM: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    LOG2_E: tl.constexpr,
):
    block = tl.program_id(0)
    kv_head, group_part = tl.program_id(1) // NUM_PARTS, tl.program_id(1) % NUM_PARTS
    row = tl.load(blocks_ptr + block * 4)
    first_token = tl.load(blocks_ptr + block * 4 + 1)  # of the step
    first_position = tl.load(blocks_ptr + block * 4 + 2)
    num_queries = tl.load(blocks_ptr + block * 4 + 3)
    if num_queries == 0:
        return

    rows = tl.arange(0, ROWS)
    query = rows // HEADS
    head_of_group = group_part * HEADS + rows % HEADS
    head = kv_head * GROUP + head_of_group
    is_row = (query < num_queries) & (query < BLOCK_QUERIES) & (head_of_group < GROUP)
    position = first_position + query
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < VALUE_DIM
    rest = VALUE_DIM + tl.arange(0, BLOCK_REST)
    is_rest = rest < HEAD_DIM
    places = (first_token + query).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head
    is_value = is_row[:, None] & is_dim[None, :]
    q = tl.load(q_ptr + places[:, None] * HEAD_DIM + dims[None, :], mask=is_value, other=0.0)
    if VALUE_DIM < HEAD_DIM:
        q_rest = tl.load(
            q_ptr + places[:, None] * HEAD_DIM + rest[None, :],
            mask=is_row[:, None] & is_rest[None, :],
            other=0.0,
        )

    largest = tl.full([ROWS], float("-inf"), tl.float32)  # in units of log2
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        largest = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        total += 1.0
    acc = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    unit = LOG2_E
    if not HAS_SOFT_CAP:
        unit = scale * LOG2_E
    units = tl.full([ROWS, BLOCK_KEYS], 0.0, tl.float32) + unit
    end = first_position + num_queries
    start = 0
    if HAS_LIMIT:
        start = tl.maximum(first_position // chunk * chunk, first_position - window + 1)
        start = tl.maximum(start, 0) // BLOCK_KEYS * BLOCK_KEYS
    # Of most blocks of keys every query sees all: these need no mask.
    whole_end = tl.maximum((first_position + 1) // BLOCK_KEYS * BLOCK_KEYS, start)
    whole_start = start
    if HAS_LIMIT:
        last_start = tl.maximum((end - 1) // chunk * chunk, end - window)
        whole_start = tl.cdiv(tl.maximum(last_start, 0), BLOCK_KEYS) * BLOCK_KEYS
        whole_start = tl.minimum(tl.maximum(whole_start, start), whole_end)
    for part in tl.static_range(0 if HAS_LIMIT else 1, 3):
        if part == 0:
            part_start, part_end = start, whole_start
        elif part == 1:
            part_start, part_end = whole_start, whole_end
        else:
            part_start, part_end = whole_end, end
        for block_start in range(part_start, part_end, BLOCK_KEYS):
            tokens = block_start + tl.arange(0, BLOCK_KEYS)
            is_token = tokens < end
            kv_places = paged_places(
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
            is_key = is_token[:, None] & is_dim[None, :]
            if part == 1:
                is_key = is_dim[None, :]
            keys = tl.load(keys_ptr + kv_places[:, None] + dims[None, :], mask=is_key, other=0.0)
            # ieee: of float32 all bits count, not those of TF32 alone.
            scores = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision="ieee").to(tl.float32)
            if VALUE_DIM < HEAD_DIM:
                keys_rest = tl.load(
                    keys_ptr + kv_places[:, None] + rest[None, :],
                    mask=is_token[:, None] & is_rest[None, :],
                    other=0.0,
                )
                scores += tl.dot(q_rest, tl.trans(keys_rest.to(q.dtype)), input_precision="ieee")
            if HAS_SOFT_CAP:
                capped = 2 * tl.sigmoid(2 * scores * scale / soft_cap) - 1  # tanh
                scores = soft_cap * capped
            if part != 1:
                is_seen = position[:, None] >= tokens[None, :]
                if HAS_LIMIT:
                    is_seen &= position[:, None] - tokens[None, :] < window
                    is_seen &= tokens[None, :] >= (position // chunk * chunk)[:, None]
                scores = tl.where(is_seen, scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=1) * unit)
            # A row that has seen nothing yet has no largest: any finite number serves.
            safe_largest = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            # One rounding, with a mask and without: a query has the same bits in either loop.
            offset = tl.broadcast_to(-safe_largest[:, None], [ROWS, BLOCK_KEYS])
            weights = tl.exp2(tl.fma(scores, units, offset))
            shrink = tl.exp2(largest - safe_largest)
            values = keys
            if VALUE_DIM == HEAD_DIM:
                values = tl.load(
                    values_ptr + kv_places[:, None] + dims[None, :], mask=is_key, other=0.0
                )
            acc = acc * shrink[:, None]
            added = tl.dot(weights.to(q.dtype), values.to(q.dtype), input_precision="ieee")
            acc += added.to(tl.float32)
            total = tl.fma(total, shrink, tl.sum(weights, axis=1))
            largest = new_largest
    attended = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(output_ptr + places[:, None] * VALUE_DIM + dims[None, :], attended, mask=is_value)
