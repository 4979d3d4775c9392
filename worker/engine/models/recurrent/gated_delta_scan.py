"""The recurrence of gated delta nets."""

from __future__ import annotations

import torch

from worker.engine.layers.state_layer import ScannedRows

_LENGTH_EPS = 1e-6


def of_length_one(vectors: torch.Tensor) -> torch.Tensor:
    """Keys, or queries."""
    return vectors / torch.sqrt((vectors * vectors).sum(-1, keepdim=True) + _LENGTH_EPS)


def gated_delta_scan(
    rows: ScannedRows,  # a matrix has the shape [num_heads, value_dim, key_dim]
    decays: torch.Tensor,  # [num_tokens, num_heads, key_dim or 1], what is kept of a matrix
    rates: torch.Tensor,  # [num_tokens, num_heads], how much of a mistake is corrected
    queries: torch.Tensor,  # [num_tokens, num_heads, key_dim]
    keys: torch.Tensor,  # [num_tokens, num_heads, key_dim]
    values: torch.Tensor,  # [num_tokens, num_heads, value_dim]
) -> torch.Tensor:
    """[num_tokens, num_heads, value_dim]; all in float32.

    Token by token, of all rows at once: a token's bits do not depend on other rows, nor on where a
    text was cut.
    """
    if rows.kernels is not None:
        return rows.kernels.gated_delta(rows.matrices, decays, rates, queries, keys, values)
    output = torch.empty_like(values)
    for tokens, matrix in rows.turns():
        key = keys[tokens][:, :, None]
        matrix *= decays[tokens][:, :, None]
        mistakes = values[tokens] - (matrix * key).sum(-1)
        matrix += (mistakes * rates[tokens][..., None])[..., None] * key
        output[tokens] = (matrix * queries[tokens][:, :, None]).sum(-1)
    return output
