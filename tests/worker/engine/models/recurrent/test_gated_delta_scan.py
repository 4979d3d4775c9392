"""The recurrence of a gated delta net, in the shapes in which it comes."""

from __future__ import annotations

import pytest
import torch

from tests.worker.engine.models.recurrent.scanned_texts import assert_cut_anywhere, in_scan
from worker.engine.device.torch_threads import torch_threads
from worker.engine.models.recurrent.gated_delta_scan import gated_delta_scan

NUM_HEADS, VALUE_DIM = 6, 21
Tokens = tuple[torch.Tensor, ...]  # decays, rates, queries, keys, values: [num_tokens, ...] each


def make_tokens(num_tokens: int, key_dim: int, seed: int, num_decays: int = 1) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> torch.Tensor:
        vectors = torch.randn(num_tokens, NUM_HEADS, size, generator=generator)
        return torch.nn.functional.normalize(vectors, dim=-1)

    rates = torch.rand(num_tokens, NUM_HEADS, generator=generator)
    decays = torch.rand(num_tokens, NUM_HEADS, num_decays, generator=generator)
    return decays, rates, normal(key_dim), normal(key_dim), normal(VALUE_DIM)


def empty(num_rows: int, key_dim: int) -> torch.Tensor:
    return torch.zeros(num_rows, NUM_HEADS, VALUE_DIM, key_dim)


def test_what_is_written_wholly_is_read_again() -> None:
    _, _, _, keys, values = make_tokens(2, 8, seed=0)
    keys[1] = keys[0]
    ones = torch.ones(2, NUM_HEADS)
    matrix = empty(1, 8)
    rows = in_scan(matrix, 2)
    outputs = gated_delta_scan(rows, ones[..., None], ones, keys, keys, values)
    torch.testing.assert_close(outputs, values)  # the second value has replaced the first
    torch.testing.assert_close(matrix[0], torch.einsum("hv,hk->hvk", values[1], keys[1]))


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("key_dim", [5, 64, 131])
@pytest.mark.parametrize("has_own_decays", [False, True])
def test_a_text_in_company_and_in_pieces(
    num_threads: int, key_dim: int, *, has_own_decays: bool
) -> None:
    """With a decay for each head, or for each value of its key."""
    num_decays = key_dim if has_own_decays else 1
    with torch_threads(num_threads):
        assert_cut_anywhere(
            gated_delta_scan,
            lambda num_tokens, seed: make_tokens(num_tokens, key_dim, seed, num_decays),
            lambda num_rows: empty(num_rows, key_dim),
        )


def test_each_value_of_a_key_has_its_decay() -> None:
    _, rates, queries, keys, values = make_tokens(2, 3, seed=0)
    decays = torch.tensor([1.0, 0.5, 0.0]).expand(2, NUM_HEADS, 3)
    keys[1] = 0.0  # nothing is written
    matrix = empty(1, 3)
    gated_delta_scan(in_scan(matrix, 2), decays, rates, queries, keys, values)
    written = torch.einsum("hv,hk->hvk", values[0] * rates[0][:, None], keys[0])
    torch.testing.assert_close(matrix[0], written * decays[0][:, None])
