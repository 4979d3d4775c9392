"""Codes of integers stand for the same numbers in whatever type and with whatever zero points."""

from __future__ import annotations

import pytest
import torch

from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.native.coded_layout import CODES4, CodedLayout, coded_layout

COLUMNS = 64


def numbers_of(layout: CodedLayout) -> torch.Tensor:
    """What its codes stand for, before they are scaled."""
    assert isinstance(layout.codes, torch.Tensor)
    codes = layout.codes.to(torch.int64)
    assert layout.code_book is not None
    if layout.layout == CODES4:
        book = layout.code_book.view(torch.bfloat16).float()
        if layout.zeros is None:
            return book[codes]
        groups = torch.arange(codes.shape[1]) // layout.group_size
        return book[(codes - layout.zeros.to(torch.int64)[:, groups]) & 31]
    low, high, lone = layout.code_book[:128], layout.code_book[128:256], layout.code_book[256]
    sizes = torch.stack([low, high], dim=1).contiguous().view(torch.bfloat16).flatten().float()
    values = sizes[codes & 127] * torch.where(codes >= 128, -1.0, 1.0)
    lone_value = torch.stack([torch.zeros_like(lone), lone]).view(torch.bfloat16).float()
    return torch.where(codes == 128, lone_value, values)


@pytest.mark.parametrize("zero", [None, 0, 1, 8, -8, 100, 127, 128, -128, 200, 300])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.uint8, 0, 16),
        (torch.uint8, 3, 9),
        (torch.uint8, 0, 256),
        (torch.int8, -8, 8),
        (torch.int8, -128, 128),
        (torch.int16, -300, -290),
        (torch.int16, 100, 400),
    ],
)
def test_one_zero_point(dtype: torch.dtype, low: int, high: int, zero: int | None) -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(low, high, (5, COLUMNS), generator=generator).to(dtype)
    scales = torch.rand(5, 2, generator=generator)
    zeros = None if zero is None else torch.full((5, 2), float(zero))
    numbers = codes.to(torch.int64) - (zero or 0)
    layout = coded_layout(ScaledWeight(codes, scales, 1, COLUMNS // 2, zeros))
    if int(numbers.min()) < -128 or int(numbers.max()) > 127:
        assert layout is None
        return
    assert layout is not None
    assert (layout.layout == CODES4) == (int(numbers.max() - numbers.min()) < 16)
    assert torch.equal(numbers_of(layout), numbers.float())


@pytest.mark.parametrize(("dtype", "base"), [(torch.uint8, 0), (torch.int8, -8), (torch.int16, 0)])
def test_zero_points_of_groups(dtype: torch.dtype, base: int) -> None:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(base, base + 16, (5, COLUMNS), generator=generator).to(dtype)
    codes[0, 0] = base
    zeros = torch.randint(base, base + 17, (5, 2), generator=generator).float()
    scales = torch.rand(5, 2, generator=generator)
    layout = coded_layout(ScaledWeight(codes, scales, 1, COLUMNS // 2, zeros))
    assert layout is not None
    assert layout.layout == CODES4
    expected = codes.float() - zeros.repeat_interleave(COLUMNS // 2, dim=1)
    assert torch.equal(numbers_of(layout), expected)
