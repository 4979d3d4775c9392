"""The recurrence of a gated delta net, in the shapes in which it comes."""

from __future__ import annotations

import pytest
import torch

from tests.worker.engine.models.recurrent.scanned_texts import assert_cut_anywhere, on_threads
from worker.engine.layers.state_layer import ScanOrder
from worker.engine.models.recurrent.gated_delta_scan import gated_delta_scan

NUM_HEADS, VALUE_DIM = 6, 21
Tokens = tuple[torch.Tensor, ...]  # decays, rates, queries, keys, values: [num_tokens, ...] each


def make_tokens(num_tokens: int, key_dim: int, seed: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> torch.Tensor:
        vectors = torch.randn(num_tokens, NUM_HEADS, size, generator=generator)
        return torch.nn.functional.normalize(vectors, dim=-1)

    decays, rates = torch.rand(2, num_tokens, NUM_HEADS, generator=generator)
    return decays, rates, normal(key_dim), normal(key_dim), normal(VALUE_DIM)


def empty(num_rows: int, key_dim: int) -> torch.Tensor:
    return torch.zeros(num_rows, NUM_HEADS, VALUE_DIM, key_dim)


def test_what_is_written_wholly_is_read_again() -> None:
    _, _, _, keys, values = make_tokens(2, 8, seed=0)
    keys[1] = keys[0]
    ones = torch.ones(2, NUM_HEADS)
    matrix = empty(1, 8)
    outputs = gated_delta_scan(matrix, ScanOrder.of((2,)), ones, ones, keys, keys, values)
    torch.testing.assert_close(outputs, values)  # the second value has replaced the first
    torch.testing.assert_close(matrix[0], torch.einsum("hv,hk->hvk", values[1], keys[1]))


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("key_dim", [5, 64, 131])
def test_a_text_in_company_and_in_pieces(num_threads: int, key_dim: int) -> None:
    with on_threads(num_threads):
        assert_cut_anywhere(
            gated_delta_scan,
            lambda num_tokens, seed: make_tokens(num_tokens, key_dim, seed),
            lambda num_rows: empty(num_rows, key_dim),
        )
