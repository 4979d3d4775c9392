"""The recurrence of Mamba 1 and 2, in the shapes in which it comes."""

from __future__ import annotations

import pytest
import torch

from tests.worker.engine.models.recurrent.scanned_texts import assert_cut_anywhere, in_scan
from worker.engine.device.torch_threads import torch_threads
from worker.engine.layers.state_layer import ScannedRows, ScanOrder
from worker.engine.models.recurrent.selective_scan import selective_scan

NUM_HEADS, HEAD_DIM = 12, 33
Tokens = tuple[torch.Tensor, ...]  # times, values, writers, readers: [num_tokens, ...] each


def make_tokens(num_tokens: int, state_size: int, seed: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(num_tokens, NUM_HEADS, *shape, generator=generator)

    times = torch.rand(num_tokens, NUM_HEADS, 1, generator=generator)
    return times, normal(HEAD_DIM), normal(state_size), normal(state_size)


def make_rates(*shape: int) -> torch.Tensor:
    return -torch.rand(NUM_HEADS, *shape, generator=torch.Generator().manual_seed(7))


def empty(num_rows: int, state_size: int) -> torch.Tensor:
    return torch.zeros(num_rows, NUM_HEADS, HEAD_DIM, state_size)


def test_rows_come_by_their_length() -> None:
    order = ScanOrder.of((2, 3, 1))
    assert order.rows.tolist() == [1, 0, 2]
    assert [tokens.tolist() for tokens in order.tokens] == [[2, 0, 5], [3, 1], [4]]


def test_it_is_the_recurrence() -> None:
    times, values, writers, readers = make_tokens(3, 5, seed=0)
    matrix, rates = empty(1, 5), make_rates(1, 1)
    outputs = selective_scan(in_scan(matrix, 3), times, rates, values, writers, readers)
    expected = empty(1, 5)[0]
    for token in range(3):
        written = torch.einsum("hp,hn->hpn", values[token], writers[token])
        expected = expected * torch.exp(times[token][..., None] * rates) + written
        read = torch.einsum("hpn,hn->hp", expected, readers[token])
        torch.testing.assert_close(outputs[token], read)
    torch.testing.assert_close(matrix[0], expected)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("state_size", [5, 64, 131])
@pytest.mark.parametrize("is_of_channels", [False, True])
def test_a_text_in_company_and_in_pieces(
    num_threads: int, state_size: int, *, is_of_channels: bool
) -> None:
    """With a rate for each head, or for each value of it."""
    rates = make_rates(HEAD_DIM, state_size) if is_of_channels else make_rates(1, 1)

    def scan(rows: ScannedRows, times: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return selective_scan(rows, times, rates, *others)

    with torch_threads(num_threads):
        assert_cut_anywhere(
            scan,
            lambda num_tokens, seed: make_tokens(num_tokens, state_size, seed),
            lambda num_rows: empty(num_rows, state_size),
        )
