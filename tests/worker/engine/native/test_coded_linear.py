"""Products with weights in codes: right, whatever the codes, and the same in any company."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from bench.products import Product
from tests.worker.engine.formats.stored_kinds import nf4_book
from tests.worker.engine.native.test_native import needs_bfloat16
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.native.coded_layout import CODES4, CODES8, coded_layout

E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MAX_ERROR = 2e-6  # relative to the largest: of sums in float32
NUM_ROWS = 200
SHAPES = ((100, 576), (33, 2048), (64, 1100))


def scales_of(rows: int, columns: int, group: int) -> torch.Tensor:
    return torch.rand(rows, -(-columns // group)) * 0.01 + 0.001


def int8_by_channel(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    return ScaledWeight(codes, scales_of(rows, columns, columns), 1, columns)


def int8_with_zeros(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(-100, 100, (rows, columns), dtype=torch.int8)
    scales = scales_of(rows, columns, 64)
    zeros = torch.randint(-20, 20, scales.shape).float()
    return ScaledWeight(codes, scales, 1, 64, zeros)


def uint8_with_zeros(rows: int, columns: int) -> ScaledWeight:
    """As GPTQ stores eight bits: the differences need nine."""
    codes = torch.randint(0, 256, (rows, columns)).to(torch.uint8)
    scales = scales_of(rows, columns, 64).to(torch.bfloat16).float()
    zeros = torch.randint(100, 156, scales.shape).float()
    return ScaledWeight(codes, scales, 1, 64, zeros)


def uint8_with_zeros_and_long_scales(rows: int, columns: int) -> ScaledWeight:
    """No product of a scale and a zero point is a float32 number."""
    codes = torch.randint(0, 256, (rows, columns)).to(torch.uint8)
    scales = scales_of(rows, columns, 64)
    zeros = torch.randint(100, 156, scales.shape).float()
    return ScaledWeight(codes, scales, 1, 64, zeros)


def float8_in_blocks(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(0, 256, (rows, columns)).to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # not a number
    scales = torch.rand(-(-rows // 32), -(-columns // 128)) + 0.1
    return ScaledWeight(codes.view(torch.float8_e4m3fn), scales, 32, 128)


def int4_in_groups(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(-8, 8, (rows, columns), dtype=torch.int8)
    return ScaledWeight(codes, scales_of(rows, columns, 32), 1, 32)


def int4_with_zeros(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(0, 16, (rows, columns)).to(torch.uint8)
    scales = scales_of(rows, columns, 128)
    zeros = torch.randint(0, 17, scales.shape).float()
    return ScaledWeight(codes, scales, 1, 128, zeros)


def int4_with_one_zero(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(0, 16, (rows, columns)).to(torch.uint8)
    scales = scales_of(rows, columns, 128)
    return ScaledWeight(codes, scales, 1, 128, torch.full_like(scales, 8.0))


def float4_in_blocks(rows: int, columns: int) -> ScaledWeight:
    codes = torch.randint(0, 16, (rows, columns)).to(torch.uint8)
    return ScaledWeight(codes, scales_of(rows, columns, 16), 1, 16, book=E2M1)


def int4_with_minima(rows: int, columns: int) -> ScaledWeight:
    """As Q4_K."""
    codes = torch.randint(0, 16, (rows, columns)).to(torch.uint8)
    scales = scales_of(rows, columns, 32)
    return ScaledWeight(codes, scales, 1, 32, minima=scales_of(rows, columns, 32) * 8)


def int5_with_minima(rows: int, columns: int) -> ScaledWeight:
    """As Q5_K."""
    codes = torch.randint(0, 32, (rows, columns)).to(torch.uint8)
    scales = scales_of(rows, columns, 32)
    return ScaledWeight(codes, scales, 1, 32, minima=-16 * scales)


def int6_in_groups(rows: int, columns: int) -> ScaledWeight:
    """As Q6_K."""
    codes = torch.randint(-32, 32, (rows, columns), dtype=torch.int8)
    return ScaledWeight(codes, scales_of(rows, columns, 16) - 0.006, 1, 16)


KINDS: dict[Callable[[int, int], ScaledWeight], int] = {
    int8_by_channel: CODES8,
    int8_with_zeros: CODES8,
    uint8_with_zeros: CODES8,
    uint8_with_zeros_and_long_scales: CODES8,
    float8_in_blocks: CODES8,
    int4_in_groups: CODES4,
    int4_with_zeros: CODES4,
    int4_with_one_zero: CODES4,
    float4_in_blocks: CODES4,
    int4_with_minima: CODES4,
    int5_with_minima: CODES8,
    int6_in_groups: CODES8,
}


@needs_bfloat16
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", KINDS)
def test_products(make: Callable[[int, int], ScaledWeight], shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    weight = make(*shape)
    layout = coded_layout(weight)
    assert layout is not None
    assert layout.layout == KINDS[make]
    rows = torch.randn(NUM_ROWS, shape[1]).to(torch.bfloat16).float()
    products = Product(weight, num_threads=2)(rows)
    expected = rows.double() @ weight.dense(torch.float64).T
    assert (products - expected).abs().max() <= MAX_ERROR * expected.abs().max()


@needs_bfloat16
@pytest.mark.parametrize("make", KINDS)
def test_a_row_does_not_depend_on_the_others(make: Callable[[int, int], ScaledWeight]) -> None:
    torch.manual_seed(2)
    weight = make(100, 1100)
    rows = torch.randn(NUM_ROWS, 1100).to(torch.bfloat16).float()
    one_thread, two_threads = (Product(weight, num_threads) for num_threads in (1, 2))
    together = two_threads(rows)
    for start, count in ((0, 1), (7, 2), (50, 12), (3, 13), (80, 24), (11, 96), (40, 97)):
        part = rows[start : start + count]
        assert torch.equal(one_thread(part), together[start : start + count])


@needs_bfloat16
@pytest.mark.parametrize(
    ("book", "max_error"),
    [
        (nf4_book(), 2.0**-9),
        (torch.tensor([0.0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]), MAX_ERROR),
    ],
    ids=["nf4", "fp4"],
)
def test_a_book_that_bfloat16_has_not(book: torch.Tensor, max_error: float) -> None:
    """Its numbers are rounded once; thirds become halves, and are exact."""
    torch.manual_seed(3)
    weight = replace(float4_in_blocks(33, 512), book=book)
    weight = replace(weight, stored=weight.codes % len(book))
    rows = torch.randn(NUM_ROWS, 512).to(torch.bfloat16).float()
    dense = weight.dense(torch.float64)
    errors = Product(weight, num_threads=2)(rows) - rows.double() @ dense.T
    assert (errors.abs() <= max_error * (rows.abs().double() @ dense.abs().T)).all()


def test_weights_without_a_layout() -> None:
    codes = torch.randint(0, 16, (32, 64)).to(torch.uint8)
    scales = torch.ones(32, 1)
    dense = (
        ScaledWeight(codes, scales, 1, 64, zeros=scales, book=E2M1),
        ScaledWeight(codes, torch.ones(32, 2), 1, 32, groups=torch.arange(64) // 40),
        ScaledWeight(codes, scales, 1, 64, is_turned=True),
        ScaledWeight(codes.expand(2, 32, 64), torch.ones(2, 32, 1), 1, 64),
        ScaledWeight((codes + 240).to(torch.uint8), scales, 1, 64),
        ScaledWeight(codes, torch.ones(32, 64), 1, 1),
    )
    assert [coded_layout(weight) for weight in dense] == [None] * len(dense)
