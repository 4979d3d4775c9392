"""A matrix product for few rows: weights are read once, as fast as memory gives them.

Where there are fewer blocks of outputs than programs that the GPU can run, several programs share a
block's inputs; the last of them to be done adds up what all have found, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from worker.engine.cuda.kernels.fixed_linear import multiply_tile

MAX_ROWS = 16  # the least that tensor cores multiply


class SkinnyTiles(NamedTuple):
    """What one program computes."""

    block_outputs: int
    block_width: int  # inputs at a time
    num_splits: int  # programs for a block of outputs


@dataclass(frozen=True, slots=True, eq=False)
class SkinnyScratch:
    """Where programs that share a block meet. Products that use one come after each other."""

    sums: torch.Tensor  # [num_values] float32
    num_done: torch.Tensor  # [max_blocks] int32, zeros between two products

    @classmethod
    def of(cls, num_outputs: int, tiles: SkinnyTiles, device: torch.device) -> SkinnyScratch:
        num_blocks = triton.cdiv(num_outputs, tiles.block_outputs)
        num_values = num_blocks * tiles.num_splits * MAX_ROWS * tiles.block_outputs
        return cls(
            torch.empty(num_values, dtype=torch.float32, device=device),
            torch.zeros(num_blocks, dtype=torch.int32, device=device),
        )


def skinny_linear(
    x: torch.Tensor,  # [num_rows, in_features], up to MAX_ROWS
    weight: torch.Tensor,  # [out_features, in_features]
    bias: torch.Tensor | None,  # [out_features]
    tiles: SkinnyTiles,
    scratch: SkinnyScratch,
) -> torch.Tensor:
    """[num_rows, out_features]."""
    num_rows, width = x.shape
    num_outputs = len(weight)
    output = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(num_outputs, tiles.block_outputs), tiles.num_splits)
    _skinny_linear_kernel[grid](
        x.contiguous(),
        weight,
        weight if bias is None else bias,
        output,
        scratch.sums,
        scratch.num_done,
        num_rows,
        num_outputs,
        width,
        tiles.num_splits,
        ROWS=MAX_ROWS,
        BLOCK_OUTPUTS=tiles.block_outputs,
        BLOCK_WIDTH=tiles.block_width,
        IS_EVEN=width % tiles.block_width == 0,
        HAS_BIAS=bias is not None,
        num_warps=4,
        num_stages=4,
    )
    return output


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def _skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    sums_ptr,
    num_done_ptr,
    num_rows,
    num_outputs,
    width,
    num_splits,
    ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    block, split = tl.program_id(0), tl.program_id(1)
    rows = tl.arange(0, ROWS)
    outputs = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    split_width = tl.cdiv(tl.cdiv(width, BLOCK_WIDTH), num_splits) * BLOCK_WIDTH
    first = split * split_width
    acc = multiply_tile(
        x_ptr,
        weight_ptr,
        rows,
        outputs,
        is_row,
        is_output,
        first,
        tl.minimum(first + split_width, width),
        width,
        BLOCK_WIDTH,
        IS_EVEN,
    )
    if num_splits > 1:
        values = rows[:, None] * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)[None, :]
        sums = sums_ptr + block * num_splits * ROWS * BLOCK_OUTPUTS + values
        tl.store(sums + split * ROWS * BLOCK_OUTPUTS, acc)
        tl.debug_barrier()  # all threads have stored before one of them says so
        if tl.atomic_add(num_done_ptr + block, 1, sem="acq_rel") < num_splits - 1:
            return
        tl.store(num_done_ptr + block, 0)
        acc = tl.zeros([ROWS, BLOCK_OUTPUTS], tl.float32)
        for other in range(num_splits):  # .cg: as the others wrote it, not as L1 remembers it
            acc += tl.load(sums + other * ROWS * BLOCK_OUTPUTS, cache_modifier=".cg")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    places = rows[:, None] * num_outputs + outputs[None, :]
    tl.store(output_ptr + places, acc, mask=is_row[:, None] & is_output[None, :])
