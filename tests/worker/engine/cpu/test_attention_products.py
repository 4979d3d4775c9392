"""Attention's products by torch: a row's bits in any company, on this processor."""

from __future__ import annotations

import random

import pytest
import torch

from worker.engine.cpu.attention_products import ROW_STEP, scored, weighted_sum
from worker.engine.device.torch_threads import torch_threads

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("head_dim", [8, 64, 96, 128, 192, 256, 576])
def test_a_row_alone_is_that_row_in_company(head_dim: int, num_threads: int) -> None:
    """Beside other rows, in other matrices, before keys that it does not see."""
    draw = random.Random(head_dim)
    generator = torch.Generator().manual_seed(head_dim)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    for _ in range(30):
        num_matrices, kv_len = draw.choice([1, 2, 3, 8]), 16 * draw.randint(1, 20)
        num_steps, more = draw.randint(1, 40), 16 * draw.randint(0, 4)
        matrix, step = draw.randrange(num_matrices), draw.randrange(num_steps)
        few = slice(step * ROW_STEP, (step + 1) * ROW_STEP)
        queries = drawn(num_matrices, num_steps * ROW_STEP, head_dim)
        keys, values = drawn(num_matrices, kv_len, head_dim), drawn(num_matrices, kv_len, head_dim)
        other = drawn(1, more, head_dim)
        with torch_threads(num_threads):
            scores = scored(queries, keys)
            longer = torch.cat([keys[matrix : matrix + 1], other], 1)
            alone = scored(queries[matrix : matrix + 1, few], longer)
            assert torch.equal(alone[0, :, :kv_len], scores[matrix, few])
            weights = scores.softmax(dim=-1)
            alone[:, :, kv_len:] = -torch.inf
            own = alone.softmax(dim=-1)
            assert torch.equal(own[0, :, :kv_len], weights[matrix, few])
            longer = torch.cat([values[matrix : matrix + 1], other], 1)
            heard = weighted_sum(own, longer)
            assert torch.equal(heard[0], weighted_sum(weights, values)[matrix, few])
