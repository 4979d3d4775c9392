"""Texts that go through a recurrence together, and each alone in pieces: bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from worker.engine.layers.state_layer import ScanOrder

LENS = (7, 1, 12, 1, 30)


@contextmanager
def on_threads(num_threads: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def assert_cut_anywhere(
    scan: Callable[..., torch.Tensor],
    make_tokens: Callable[[int, int], tuple[torch.Tensor, ...]],  # of a length, by a seed
    empty: Callable[[int], torch.Tensor],  # matrices of so many rows
) -> None:
    texts = [make_tokens(length, seed) for seed, length in enumerate(LENS)]
    order = ScanOrder.of(LENS)
    matrices = empty(len(LENS))
    joined = (torch.cat(parts) for parts in zip(*texts, strict=True))
    together = torch.split(scan(matrices, order, *joined), list(LENS))
    for place, row in enumerate(order.rows.tolist()):
        alone = empty(1)
        for start, end in ((0, 1), (1, 6), (6, LENS[row])):
            piece = [part[start:end] for part in texts[row]]
            if len(piece[0]):
                outputs = scan(alone, ScanOrder.of((len(piece[0]),)), *piece)
                assert torch.equal(outputs, together[row][start:end])
        assert torch.equal(alone[0], matrices[place])
