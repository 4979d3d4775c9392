"""The recurrences by kernels: those of torch, and a row's bits whatever is beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from tests.worker.engine.models.recurrent.scanned_texts import in_scan
from worker.engine.layers.state_layer import NO_ORDER, ScannedRows, StateMark
from worker.engine.models.recurrent.gated_delta_scan import gated_delta_scan
from worker.engine.models.recurrent.selective_scan import selective_scan

LENS = (4, 1, 6)
MARKS = (StateMark(0, 2, 4), StateMark(2, 6, 3))
# Heads, then rows and columns of a matrix; then of the factors by which it shrinks.
SHAPES = {
    "delta by head": ((2, 5, 3), (2, 1)),
    "delta by key": ((2, 5, 3), (2, 3)),
    "mamba 2": ((2, 5, 3), (2, 1, 1)),
    "mamba, lightning": ((1, 5, 3), (1, 5, 3)),
}


def by_kernels(
    slots: Sequence[int],
    query_lens: Sequence[int],
    marks: Sequence[StateMark],
    matrices: torch.Tensor,
) -> ScannedRows:
    from worker.engine.cuda.kernels.scan_kernels import TritonScans

    device = matrices.device
    there = torch.tensor(slots, device=device)
    scans = TritonScans(there, query_lens, marks, lambda values: values.to(device))
    return ScannedRows(matrices, there, NO_ORDER, scans)


@pytest.mark.parametrize("name", SHAPES)
def test_a_scan_is_torch_s_in_company_and_in_pieces(device: torch.device, name: str) -> None:
    (num_heads, num_rows, num_cols), shrinking = SHAPES[name]
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(len(name)))
    num_tokens, vectors = sum(LENS), [normal(sum(LENS), num_heads, num_cols) for _ in range(2)]
    values = normal(num_tokens, num_heads, num_rows)
    start = normal(5, num_heads, num_rows, num_cols)
    if name.startswith("delta"):
        scan: Callable[..., torch.Tensor] = gated_delta_scan
        rates = normal(num_tokens, num_heads).sigmoid()
        tokens = (normal(num_tokens, *shrinking).sigmoid(), rates, *vectors, values)
    else:
        times = normal(num_tokens, 1, shrinking[1]).exp()
        rates = -normal(*shrinking).exp()

        def selective(
            rows: ScannedRows, times: torch.Tensor, *others: torch.Tensor
        ) -> torch.Tensor:
            return selective_scan(rows, times, rates.to(times.device), *others)

        scan = selective
        tokens = (times, values, *vectors)
    wanted, ours, alone = start.clone(), start.clone().to(device), start.to(device)
    expected = scan(in_scan(wanted, *LENS, marks=MARKS), *tokens)
    there = [each.to(device) for each in tokens]
    found = scan(by_kernels((0, 1, 2), LENS, MARKS, ours), *there)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.cpu(), wanted, rtol=1e-5, atol=1e-5)
    for begin, end in ((5, 7), (7, 11)):  # the last row
        piece = [each[begin:end] for each in there]
        outputs = scan(by_kernels((2,), (end - begin,), (), alone), *piece)
        assert torch.equal(outputs, found[begin:end])
    assert torch.equal(alone[2], ours[2])
