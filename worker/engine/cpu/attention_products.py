"""Attention's two products on a CPU by torch, of which no row depends on the others in float32.

A library chooses its way by the processor and the shape, and the ways differ in how they divide a
long sum. So sums are divided here, at fixed places, into ones that no way divides again.
"""

from __future__ import annotations

import torch

ROW_STEP = 4  # a matrix has a multiple of so many rows; else it may be multiplied in another way
# Of a head's values. From 96 on MKL divides by AVX-512 as the number of rows has it.
MAX_KEY_SUMMANDS = 64
MAX_VALUE_SUMMANDS = 128  # of positions


def scored(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[num_matrices, num_rows, head_dim] x [num_matrices, kv_len, head_dim] -> [num_matrices,
    num_rows, kv_len].
    """
    return _product(queries, keys.transpose(1, 2), MAX_KEY_SUMMANDS)


def weighted_sum(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[num_matrices, num_rows, kv_len] x [num_matrices, kv_len, head_dim] -> [num_matrices,
    num_rows, head_dim].
    """
    return _product(weights, values, MAX_VALUE_SUMMANDS)


def _product(rows: torch.Tensor, columns: torch.Tensor, max_summands: int) -> torch.Tensor:
    num_summands = columns.shape[1]
    if num_summands <= max_summands or columns.dtype is not torch.float32:
        return rows @ columns
    total = rows[:, :, :max_summands] @ columns[:, :max_summands]
    for start in range(max_summands, num_summands, max_summands):
        slab = slice(start, start + max_summands)
        total.baddbmm_(rows[:, :, slab], columns[:, slab])
    return total
