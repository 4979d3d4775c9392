"""A matrix product in which a row's bits depend on nothing but the row and the weights.

Libraries choose tiles, and where a sum is cut in pieces, by the number of rows. Here one binary of
one tile shape serves every number: a row is summed over the tiles of its inputs in their order, by
one program, and rows beside it in a tile, or zeros that fill it up, have no part in its sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_ROWS = 64  # the least that Hopper's products take
BLOCK_BYTES = 128  # of a row's inputs, and of a weight's, that are multiplied at a time


def fixed_linear(
    x: torch.Tensor,  # [num_rows, in_features]
    weight: torch.Tensor,  # [out_features, in_features]
    bias: torch.Tensor | None,  # [out_features]
) -> torch.Tensor:
    """[num_rows, out_features]."""
    num_rows, width = x.shape
    num_outputs = len(weight)
    output = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    block_width, block_outputs = BLOCK_BYTES // x.itemsize, _block_outputs(num_outputs)
    grid = (triton.cdiv(num_rows, BLOCK_ROWS) * triton.cdiv(num_outputs, block_outputs),)
    _fixed_linear_kernel[grid](
        x.contiguous(),
        weight,
        weight if bias is None else bias,
        output,
        num_rows,
        num_outputs,
        width,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_OUTPUTS=block_outputs,
        BLOCK_WIDTH=block_width,
        IS_EVEN=width % block_width == 0,
        HAS_BIAS=bias is not None,
        num_warps=4,
        num_stages=4,
    )
    return output


def _block_outputs(num_outputs: int) -> int:
    """Narrow weights are cut finer, so that there is a program for most multiprocessors."""
    if num_outputs <= 4096:
        return 32
    return 64 if num_outputs <= 16384 else 128


@triton.jit
def multiply_tile(
    x_ptr,
    weight_ptr,
    rows,  # [num_rows], of x
    outputs,  # [num_outputs]: rows of the weight
    is_row,
    is_output,
    first,
    end,
    width,
    BLOCK_WIDTH: tl.constexpr,
    IS_EVEN: tl.constexpr,  # whether blocks end where inputs do
):
    """[num_rows, num_outputs] float32: over the inputs from `first` to `end`, block by block."""
    cols = tl.arange(0, BLOCK_WIDTH)
    x_places = x_ptr + rows.to(tl.int64)[:, None] * width + cols[None, :]
    weight_places = weight_ptr + outputs.to(tl.int64)[None, :] * width + cols[:, None]
    acc = tl.zeros([rows.shape[0], outputs.shape[0]], tl.float32)
    for start in range(first, end, BLOCK_WIDTH):
        is_x, is_weight = is_row[:, None], is_output[None, :]
        if not IS_EVEN:
            is_col = start + cols < width
            is_x, is_weight = is_x & is_col[None, :], is_weight & is_col[:, None]
        x = tl.load(x_places + start, mask=is_x, other=0.0)
        weight = tl.load(weight_places + start, mask=is_weight, other=0.0)
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["num_rows"])
def _fixed_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    num_rows,
    num_outputs,
    width,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    # Programs that run at the same time read the same weights.
    num_row_blocks = tl.cdiv(num_rows, BLOCK_ROWS)
    rows = tl.program_id(0) % num_row_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outputs = tl.program_id(0) // num_row_blocks * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    acc = multiply_tile(
        x_ptr, weight_ptr, rows, outputs, is_row, is_output, 0, width, width, BLOCK_WIDTH, IS_EVEN
    )
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    places = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(output_ptr + places, acc, mask=is_row[:, None] & is_output[None, :])
