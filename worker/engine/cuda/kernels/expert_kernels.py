"""A mixture of experts: who is given which rows, all experts' products in one kernel, and the sums.

Nothing waits for the host to know how many rows an expert has: programs are as many as there could
be, and those that have none end at once. A row's bits depend on its expert and its own inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from worker.engine.cuda.kernels.fixed_linear import BLOCK_BYTES, multiply_tile

FEW_ROWS, MANY_ROWS = 16, 64  # the least that tensor cores multiply, and that Hopper's wide ones do
_BLOCK_PLACES = 1024  # rows that are looked through at a time


class ExpertRows(NamedTuple):
    """Rows stand by expert: a row is what one of its experts makes of a token."""

    order: torch.Tensor  # [num_rows] int32: a row's place among token * num_chosen + its choice
    counts: torch.Tensor  # [num_experts] int32


def choose_best(
    logits: torch.Tensor,  # [num_tokens, num_experts] float32
    correction: torch.Tensor | None,  # [num_experts] float32: it counts where experts are chosen
    num_chosen: int,
    *,
    is_softmax: bool,  # else each logit's sigmoid is its score
    norm_eps: float | None,  # added to the sum that shares are divided by; None: they are not
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token, rising, int64, and their shares, float32.

    [num_tokens, num_chosen] each. Of equals the first are chosen; what is no number comes last.
    """
    num_tokens, num_experts = logits.shape
    expert_ids = torch.empty(num_tokens, num_chosen, dtype=torch.int64, device=logits.device)
    shares = torch.empty(num_tokens, num_chosen, dtype=torch.float32, device=logits.device)
    _choose_best_kernel[(num_tokens,)](
        logits.contiguous(),
        logits if correction is None else correction,
        expert_ids,
        shares,
        num_experts,
        norm_eps or 0.0,
        scale,
        EXPERTS=triton.next_power_of_2(num_experts),
        NUM_CHOSEN=num_chosen,
        IS_SOFTMAX=is_softmax,
        HAS_CORRECTION=correction is not None,
        IS_NORMED=norm_eps is not None,
    )
    return expert_ids, shares


def sort_rows(expert_ids: torch.Tensor, num_experts: int) -> ExpertRows:
    """Sorts rows by expert, [num_tokens, num_chosen] int64; an expert's stay in their order."""
    num_rows, device = expert_ids.numel(), expert_ids.device
    order = torch.empty(num_rows, dtype=torch.int32, device=device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    _sort_rows_kernel[(num_experts,)](
        expert_ids.contiguous(), order, counts, num_rows, BLOCK=_BLOCK_PLACES
    )
    return ExpertRows(order, counts)


def block_rows_for(num_rows: int, num_experts: int) -> int:
    """How many rows a program computes, where that may depend on how many there are."""
    return FEW_ROWS if num_rows <= FEW_ROWS * num_experts else MANY_ROWS


def expert_linear(
    x: torch.Tensor,  # [num_tokens, in_features], or [num_rows, in_features] by expert
    weights: torch.Tensor,  # [num_experts, out_features, in_features]
    biases: torch.Tensor | None,  # [num_experts, out_features]
    rows: ExpertRows,
    num_chosen: int | None,  # for a token of x: gives rows by expert; None: of x by expert, back
    block_rows: int,
) -> torch.Tensor:
    """[num_rows, out_features]: each row by its expert."""
    num_rows = len(rows.order)
    num_experts, num_outputs, width = weights.shape
    output = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    block_width, block_outputs = BLOCK_BYTES // x.itemsize, 32 if num_outputs <= 4096 else 64
    # An expert's last block need not be full.
    num_blocks = num_rows // block_rows + min(num_rows, num_experts)
    _expert_linear_kernel[(num_blocks * triton.cdiv(num_outputs, block_outputs),)](
        x.contiguous(),
        weights,
        weights if biases is None else biases,
        rows.order,
        rows.counts,
        output,
        num_blocks,
        num_outputs,
        width,
        num_experts,
        1 if num_chosen is None else num_chosen,
        EXPERTS=triton.next_power_of_2(num_experts),
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=block_outputs,
        BLOCK_WIDTH=block_width,
        IS_EVEN=width % block_width == 0,
        HAS_BIAS=biases is not None,
        IS_GIVEN_TOKENS=num_chosen is not None,
        num_warps=4,
        num_stages=4,
    )
    return output


def sum_shares(outputs: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Adds what experts give, [num_tokens * num_chosen, size], by what each counts, [num_tokens,
    num_chosen] float32, one after the other: [num_tokens, size].
    """
    num_tokens, num_chosen = shares.shape
    size = outputs.shape[1]
    sums = torch.empty(num_tokens, size, dtype=outputs.dtype, device=outputs.device)
    block = min(1024, triton.next_power_of_2(size))
    _sum_shares_kernel[(num_tokens, triton.cdiv(size, block))](
        outputs, shares.contiguous(), sums, size, NUM_CHOSEN=num_chosen, BLOCK=block
    )
    return sums


@triton.jit
def _choose_best_kernel(
    logits_ptr,
    correction_ptr,
    expert_ids_ptr,
    shares_ptr,
    num_experts,
    norm_eps,
    scale,
    EXPERTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    IS_SOFTMAX: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    IS_NORMED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS)
    is_free = experts < num_experts
    logits = tl.load(logits_ptr + token * num_experts + experts, mask=is_free, other=-float("inf"))
    if IS_SOFTMAX:
        scores = tl.exp(logits - tl.max(logits, axis=0))
        scores /= tl.sum(scores, axis=0)
    else:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    preferred = scores
    if HAS_CORRECTION:
        preferred += tl.load(correction_ptr + experts, mask=is_free, other=0.0)
    preferred = tl.where(preferred == preferred, preferred, -float("inf"))
    is_chosen = experts < 0
    for _ in range(NUM_CHOSEN):
        best = tl.max(tl.where(is_free, preferred, -float("inf")), axis=0)
        first = tl.min(tl.where(is_free & (preferred == best), experts, EXPERTS), axis=0)
        is_chosen = is_chosen | (experts == first)
        is_free = is_free & (experts != first)
    if IS_NORMED:
        scores /= tl.sum(tl.where(is_chosen, scores, 0.0), axis=0) + norm_eps
    places = token * NUM_CHOSEN + tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
    tl.store(expert_ids_ptr + places, experts.to(tl.int64), mask=is_chosen)
    tl.store(shares_ptr + places, scores * scale, mask=is_chosen)


@triton.jit(do_not_specialize=["num_rows"])
def _sort_rows_kernel(expert_ids_ptr, order_ptr, counts_ptr, num_rows, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    first = 0  # rows of the experts before
    for start in range(0, num_rows, BLOCK):
        ids = tl.load(expert_ids_ptr + start + cols, mask=start + cols < num_rows, other=expert)
        first += tl.sum((ids < expert).to(tl.int32), axis=0)
    place = first
    for start in range(0, num_rows, BLOCK):
        ids = tl.load(expert_ids_ptr + start + cols, mask=start + cols < num_rows, other=-1)
        is_own = ids == expert
        ranks = tl.cumsum(is_own.to(tl.int32), axis=0)
        tl.store(order_ptr + place + ranks - 1, start + cols, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), axis=0)
    tl.store(counts_ptr + expert, place - first)


@triton.jit(do_not_specialize=["num_blocks"])
def _expert_linear_kernel(
    x_ptr,
    weights_ptr,
    biases_ptr,
    order_ptr,
    counts_ptr,
    output_ptr,
    num_blocks,
    num_outputs,
    width,
    num_experts,
    num_chosen,
    EXPERTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GIVEN_TOKENS: tl.constexpr,
):
    # Programs that run at the same time read the same weights.
    block = tl.program_id(0) % num_blocks
    experts = tl.arange(0, EXPERTS)
    counts = tl.load(counts_ptr + experts, mask=experts < num_experts, other=0)
    blocks = tl.cdiv(counts, BLOCK_ROWS)
    expert = tl.sum((tl.cumsum(blocks, axis=0) <= block).to(tl.int32), axis=0)
    if expert >= num_experts:
        return
    block_in_expert = block - tl.sum(tl.where(experts < expert, blocks, 0), axis=0)
    first = tl.sum(tl.where(experts < expert, counts, 0), axis=0)
    end = tl.sum(tl.where(experts <= expert, counts, 0), axis=0)
    rows = first + block_in_expert * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outputs = tl.program_id(0) // num_blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_row, is_output = rows < end, outputs < num_outputs
    order = tl.load(order_ptr + rows, mask=is_row, other=0)
    sources = order // num_chosen if IS_GIVEN_TOKENS else rows
    targets = rows if IS_GIVEN_TOKENS else order
    weight_ptr = weights_ptr + expert.to(tl.int64) * num_outputs * width
    acc = multiply_tile(
        x_ptr,
        weight_ptr,
        sources,
        outputs,
        is_row,
        is_output,
        0,
        width,
        width,
        BLOCK_WIDTH,
        IS_EVEN,
    )
    if HAS_BIAS:
        biases = tl.load(biases_ptr + expert * num_outputs + outputs, mask=is_output, other=0.0)
        acc += biases.to(tl.float32)[None, :]
    places = targets.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(output_ptr + places, acc, mask=is_row[:, None] & is_output[None, :])


@triton.jit
def _sum_shares_kernel(
    outputs_ptr, shares_ptr, sums_ptr, size, NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < size
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(NUM_CHOSEN):
        row = token * NUM_CHOSEN + choice
        output = tl.load(outputs_ptr + row * size + cols, mask=mask, other=0.0).to(tl.float32)
        total += output * tl.load(shares_ptr + row)
    tl.store(sums_ptr + token * size + cols, total, mask=mask)
