"""The recurrence of Mamba 1 and 2."""

from __future__ import annotations

import torch

from worker.engine.layers.state_layer import ScannedRows


def selective_scan(
    rows: ScannedRows,  # a matrix has the shape [num_heads, head_dim, state_size]
    times: torch.Tensor,  # [num_tokens, num_heads, head_dim or 1], how long a matrix decays
    rates: torch.Tensor,  # [num_heads, head_dim or 1, state_size or 1], how fast
    values: torch.Tensor,  # [num_tokens, num_heads, head_dim], what is added to it
    writers: torch.Tensor,  # [num_tokens, num_heads, state_size], by which it is added
    readers: torch.Tensor,  # [num_tokens, num_heads, state_size], by which it is read
) -> torch.Tensor:
    """[num_tokens, num_heads, head_dim]; all in float32.

    Token by token, of all rows at once. A token's bits do not depend on other rows, nor on where a
    text was cut: its matrix is changed by one multiplication and one addition wherever it comes.
    """
    if rows.kernels is not None:
        return rows.kernels.selective(rows.matrices, times, rates, values, writers, readers)
    output = torch.empty_like(values)
    for tokens, matrix in rows.turns():
        matrix *= torch.exp(times[tokens][..., None] * rates)
        matrix += values[tokens][..., None] * writers[tokens][:, :, None]
        output[tokens] = (matrix * readers[tokens][:, :, None]).sum(-1)
    return output
