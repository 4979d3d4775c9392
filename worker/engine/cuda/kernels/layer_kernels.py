"""What a decoder layer does between its matrix products and its attention, each in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from worker.engine.cuda.kv.kv_dtype import KV_FP8


def add_rms_norm(
    delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the sum, and the sum, rounded before: [num_tokens, hidden_size] each."""
    num_tokens, hidden_size = delta.shape
    normed, total = torch.empty_like(delta), torch.empty_like(delta)
    block = triton.next_power_of_2(hidden_size)
    _add_rms_norm_kernel[(num_tokens,)](
        delta,
        residual,
        weight,
        normed,
        total,
        hidden_size,
        eps,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return normed, total


def rotate_and_append(
    qkv: torch.Tensor,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
    qk_norm: torch.Tensor | None,  # [num_heads + num_kv_heads, head_dim]
    eps: float,
    cos: torch.Tensor,  # [max_positions, head_dim / 2]
    sin: torch.Tensor,
    positions: torch.Tensor,  # [num_tokens] int64
    keys: torch.Tensor,  # [num_pages, page_size, num_kv_heads, head_dim], written
    values: torch.Tensor,
    out_loc: torch.Tensor,  # [num_tokens] int64, slots of the pool
) -> torch.Tensor:
    """Norms and rotates queries and keys; keys and values go to the pool, in its dtype.

    Returns the queries, [num_tokens, num_heads, head_dim].
    """
    num_tokens, num_all_heads, head_dim = qkv.shape
    num_kv_heads = keys.shape[2]
    num_heads = num_all_heads - 2 * num_kv_heads
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    _rotate_and_append_kernel[(num_tokens, num_all_heads)](
        qkv,
        qk_norm if qk_norm is not None else qkv,
        cos,
        sin,
        positions,
        queries,
        keys,
        values,
        out_loc,
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF_DIM=head_dim // 2,
        BLOCK=triton.next_power_of_2(head_dim // 2),
        HAS_NORM=qk_norm is not None,
        LARGEST=torch.finfo(keys.dtype).max if keys.dtype == KV_FP8 else None,
        num_warps=1,
    )
    return queries


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * intermediate_size] -> [num_tokens, intermediate_size]."""
    num_tokens, both = gate_up.shape
    size = both // 2
    output = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(size))
    _silu_mul_kernel[(num_tokens, triton.cdiv(size, block))](gate_up, output, size, BLOCK=block)
    return output


@triton.jit
def _add_rms_norm_kernel(
    delta_ptr, residual_ptr, weight_ptr, normed_ptr, total_ptr, size, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * size
    cols = tl.arange(0, BLOCK)
    mask = cols < size
    delta = tl.load(delta_ptr + row + cols, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row + cols, mask=mask, other=0.0).to(tl.float32)
    total = (residual + delta).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row + cols, total, mask=mask)
    total = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / size + eps)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    normed = total * scale * weight
    tl.store(normed_ptr + row + cols, normed, mask=mask)


@triton.jit
def _store_head(
    target_ptr, first, second, cols, mask, HALF_DIM: tl.constexpr, LARGEST: tl.constexpr
):
    """Both halves, cut to LARGEST where there is one; what is not a number stays none."""
    if LARGEST is not None:
        first = tl.clamp(first, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        second = tl.clamp(second, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(target_ptr + cols, first, mask=mask)
    tl.store(target_ptr + HALF_DIM + cols, second, mask=mask)


@triton.jit
def _rotate_and_append_kernel(
    qkv_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    out_loc_ptr,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    LARGEST: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    mask = cols < HALF_DIM
    head_dim = 2 * HALF_DIM
    source = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * head_dim
    slot = tl.load(out_loc_ptr + token)
    first = tl.load(source + cols, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF_DIM + cols, mask=mask, other=0.0).to(tl.float32)
    if head >= NUM_HEADS + NUM_KV_HEADS:
        place = slot * NUM_KV_HEADS + head - NUM_HEADS - NUM_KV_HEADS
        _store_head(values_ptr + place * head_dim, first, second, cols, mask, HALF_DIM, LARGEST)
    else:
        if HAS_NORM:
            squares = tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)
            scale = 1.0 / tl.sqrt(squares / head_dim + eps)
            weight = norm_ptr + head * head_dim
            first *= scale * tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
            second *= scale * tl.load(weight + HALF_DIM + cols, mask=mask, other=0.0).to(tl.float32)
        angle = tl.load(positions_ptr + token) * HALF_DIM + cols
        cos = tl.load(cos_ptr + angle, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=mask, other=0.0).to(tl.float32)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        if head < NUM_HEADS:
            place = token * NUM_HEADS + head
            _store_head(queries_ptr + place * head_dim, turned, second, cols, mask, HALF_DIM, None)
        else:
            place = slot * NUM_KV_HEADS + head - NUM_HEADS
            _store_head(keys_ptr + place * head_dim, turned, second, cols, mask, HALF_DIM, LARGEST)


@triton.jit
def _silu_mul_kernel(gate_up_ptr, output_ptr, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    gate = tl.load(gate_up_ptr + row * 2 * size + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + cols, mask=mask, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(output_ptr + row * size + cols, product, mask=mask)
