"""Codes in words of 32 bits, packed as they lie there: the products of the same codes in bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.products import Product
from tests.worker.engine.native.test_native import needs_bfloat16
from worker.engine.formats.block_codes import BlockCodes, nibble_codes
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight, join_rows
from worker.engine.formats.stored.bit_packing import E2M1_BOOK
from worker.engine.formats.stored.column_words import AWQ_WORDS

ROWS, COLUMNS, GROUP = 72, 1184, 32  # neither are whole blocks, nor what is read at a time


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 31), (1 << 31) - 1, shape).to(torch.int32)


def stored_codes(kind: str) -> BlockCodes:
    match kind:
        case "rows":
            return nibble_codes(words(ROWS, COLUMNS // 8), zero=8)
        case "bytes":
            return nibble_codes(torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8))
        case "high first":
            halves = torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8)
            return nibble_codes(halves, high_first=True)
        case "columns":
            return nibble_codes(words(COLUMNS // 8, ROWS).T)
    return BlockCodes.of(AWQ_WORDS, words(COLUMNS, ROWS // 8).T)


@needs_bfloat16
@pytest.mark.parametrize("inputs", [None, InputCodes(128)], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("values", ["plain", "one zero point", "zero points", "book"])
@pytest.mark.parametrize("kind", ["rows", "bytes", "high first", "columns", "awq"])
def test_products(kind: str, values: str, inputs: InputCodes | None) -> None:
    torch.manual_seed(0)
    num_groups = COLUMNS // GROUP
    zeros = {
        "one zero point": torch.full((ROWS, num_groups), 3.0),
        "zero points": torch.randint(0, 8, (ROWS, num_groups)).float(),
    }
    stored = ScaledWeight(
        stored_codes(kind),
        torch.rand(ROWS, num_groups),
        1,
        GROUP,
        zeros.get(values),
        book=torch.tensor(E2M1_BOOK) if values == "book" and kind != "rows" else None,
    )
    joined = join_rows([stored, stored.with_rows(torch.randperm(ROWS))])
    assert joined is not None
    assert isinstance(joined.stored, BlockCodes)
    rows = torch.randn(5, COLUMNS)
    expected = Product(replace(joined, stored=joined.codes), 1, inputs=inputs)(rows)
    assert torch.equal(Product(joined, 1, inputs=inputs)(rows), expected)


@needs_bfloat16
@pytest.mark.parametrize("inputs", [None, InputCodes(GROUP)], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("kind", ["columns", "a byte each"])
def test_columns_whose_groups_are_anywhere(kind: str, inputs: InputCodes | None) -> None:
    """As GPTQ's desc_act stores them: what columns and inputs give that were sorted before."""
    torch.manual_seed(1)
    num_groups = COLUMNS // GROUP
    byte_codes = torch.randint(0, 256, (ROWS, COLUMNS)).to(torch.uint8)
    stored = stored_codes(kind) if kind == "columns" else byte_codes
    zeros = torch.randint(0, 8, (ROWS, num_groups)).float()
    groups = (torch.arange(COLUMNS) // GROUP)[torch.randperm(COLUMNS)]
    scales = torch.rand(ROWS, num_groups)
    weight = ScaledWeight(stored, scales, 1, GROUP, zeros, groups=groups)
    order = groups.argsort(stable=True)
    by_place = replace(weight, stored=weight.codes[:, order], groups=None)
    for num_rows in (1, 5, 40):
        rows = torch.randn(num_rows, COLUMNS)
        products = Product(weight, 2, inputs=inputs)(rows)
        assert torch.equal(products, Product(by_place, 2, inputs=inputs)(rows[:, order]))
    if inputs is None:
        expected = rows.bfloat16().double() @ weight.dense(torch.float64).T
        assert (products - expected).abs().max() <= 1e-5 * expected.abs().max()
