"""Texts that go through a recurrence together, and each alone in pieces: bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from worker.engine.layers.state_layer import ScannedRows, ScanOrder, StateMark

LENS = (7, 1, 12, 1, 30)


def in_scan(
    matrices: torch.Tensor,  # [num_slots, *shape]: a row's is where the row is
    *query_lens: int,
    marks: Sequence[StateMark] = (),
) -> ScannedRows:
    order = ScanOrder.of(query_lens, marks)
    return ScannedRows(matrices, order.rows, order)


def assert_cut_anywhere(
    scan: Callable[..., torch.Tensor],
    make_tokens: Callable[[int, int], tuple[torch.Tensor, ...]],  # of a length, by a seed
    empty: Callable[[int], torch.Tensor],  # matrices of so many rows
) -> None:
    """Also by marks, which keep what is there when a scan comes by."""
    texts = [make_tokens(length, seed) for seed, length in enumerate(LENS)]
    marks = [StateMark(0, 6, 5), StateMark(4, 6, 6), StateMark(1, 1, 7), StateMark(4, 30, 8)]
    matrices = empty(9)
    joined = (torch.cat(parts) for parts in zip(*texts, strict=True))
    together = torch.split(scan(in_scan(matrices, *LENS, marks=marks), *joined), list(LENS))
    for row, length in enumerate(LENS):
        alone = empty(1)
        for start, end in ((0, 1), (1, 6), (6, length)):
            piece = [part[start:end] for part in texts[row]]
            if len(piece[0]):
                outputs = scan(in_scan(alone, len(piece[0])), *piece)
                assert torch.equal(outputs, together[row][start:end])
            for mark in marks:
                if mark.row == row and mark.num_tokens == min(end, length):
                    assert torch.equal(alone[0], matrices[mark.slot])
        assert torch.equal(alone[0], matrices[row])
