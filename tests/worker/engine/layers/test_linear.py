from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from worker.engine.layers import checked_linears
from worker.engine.layers.checked_linears import (
    ONE_BY_ONE,
    SIZES,
    CheckedLinears,
    choose_linears,
    probing_rows,
    probing_weight,
)
from worker.engine.layers.linear import Linear, MakeLinear

FirstInput = Callable[[int], int]  # where the sum over the inputs begins, by the number of rows


def assert_rows_are_independent(layer: Linear, rows: torch.Tensor) -> None:
    together = layer(rows)
    for num_rows in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 255):
        for start in (0, 3, 40):
            part = layer(rows[start : start + num_rows].contiguous())
            assert torch.equal(part, together[start : start + num_rows]), (num_rows, start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_features", [48, 576, 1536])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, in_features: int) -> None:
    """With weights as models have them, and with such as show every order of a sum."""
    generator = torch.Generator().manual_seed(1)
    linears = choose_linears(dtype)
    usual = torch.randn(96, in_features, generator=generator).to(dtype)
    rows = torch.randn(300, in_features, generator=generator).to(dtype)
    assert_rows_are_independent(linears.make(usual, None), rows)
    probing = linears.make(probing_weight(96, in_features, dtype), None)
    assert_rows_are_independent(probing, probing_rows(in_features, dtype).repeat(2, 1)[:300])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_does_not_count(dtype: torch.dtype) -> None:
    """Adapters are computed on one thread for few tokens, and on all for many."""
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        layer = choose_linears(dtype, (1, 2)).make(probing_weight(8, 2048, dtype), None)
        rows = probing_rows(2048, dtype)
        on_two = [layer(rows[:num_rows]) for num_rows in (1, 5, 16, 100)]
        torch.set_num_threads(1)
        on_one = [layer(rows[:num_rows]) for num_rows in (1, 5, 16, 100)]
    finally:
        torch.set_num_threads(usual)
    assert all(map(torch.equal, on_one, on_two))


def library(first_input: FirstInput) -> MakeLinear:
    """One that sums the inputs in four parts: where these begin, the sum is rounded.

    Otherwise each row is computed by itself, so that nothing else can depend on its company.
    """

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        def multiply(x: torch.Tensor) -> torch.Tensor:
            first = first_input(len(x))
            parts = [each.double().roll(-first, 1).chunk(4, 1) for each in (x, weight)]
            total = torch.zeros(len(x), len(weight))
            for inputs, weights in zip(*parts, strict=True):
                for num, row in enumerate(inputs):
                    total[num] += (weights * row).sum(1).float()
            return (total if bias is None else total + bias).to(x.dtype)

        return multiply

    return make


@pytest.mark.parametrize(
    ("first_input", "missing"),
    [
        (lambda _: 3, set()),
        (lambda num_rows: 1 if num_rows == 1 else 3, {1}),
        (
            lambda num_rows: 2 if num_rows % 16 == 0 else 3,
            {*SIZES} - {16, 32, 48, 64, 96, 128, 256},
        ),
        (lambda num_rows: 4 if num_rows >= 32 else 3, {32, 48, 64, 96, 128, 256}),
    ],
    ids=["never", "alone", "by the tile", "many"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_depends_on_company_is_not_used(
    first_input: FirstInput, missing: set[int], dtype: torch.dtype
) -> None:
    make = library(first_input)
    weight = torch.randn(24, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = probing_rows(96, dtype)
    linears = CheckedLinears("a library", make)
    layer = linears.make(weight, None)
    probing = linears.make(probing_weight(24, 96, dtype), None)
    assert_rows_are_independent(probing, rows)
    assert torch.equal(layer(rows[:8]), make(weight, None)(rows[:8])) or 8 in missing
    told = linears.account()
    assert told.startswith("a row's bits do not depend on its company, tried in 1 shapes")
    if missing:
        assert f"96 to 24 never in {', '.join(map(str, sorted(missing)))} rows" in told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_no_number_of_rows_agrees_each_row_is_computed_alone(dtype: torch.dtype) -> None:
    computed: list[int] = []

    def first_input(num_rows: int) -> int:
        computed.append(num_rows)
        return 2 if num_rows == 1 else len(computed)

    linears = CheckedLinears("a library", library(first_input))
    layer = linears.make(probing_weight(24, 96, dtype), None)
    computed.clear()
    assert_rows_are_independent(layer, probing_rows(96, dtype))
    assert {*computed} == {*ONE_BY_ONE}
    assert "96 to 24 row by row, for there they do" in linears.account()


@pytest.mark.parametrize("num_rows", [0, 1, 5, 16, 65, 200, 600])
def test_rows_are_computed_in_sizes_that_were_tried(num_rows: int) -> None:
    computed = []

    def first_input(rows: int) -> int:
        computed.append(rows)
        return 3

    make = library(first_input)
    weight, bias = torch.randn(5, 48), torch.randn(5)
    layer = CheckedLinears("a library", make).make(weight, bias)
    computed.clear()
    x = torch.randn(num_rows, 48)
    assert torch.allclose(layer(x), functional.linear(x, weight, bias), atol=1e-4)
    assert {*computed} <= {*SIZES}
    assert sum(computed) - num_rows <= max(1, num_rows // 3)


def test_without_the_private_operators_the_plain_ones_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise AttributeError("no such operator")

    assert choose_linears(torch.float32).name == "oneDNN's packed products"
    monkeypatch.setattr(checked_linears, "PackedLinear", missing)
    plain = choose_linears(torch.float32)
    assert plain.name == "F.linear"
    rows = probing_rows(48, torch.float32)
    assert_rows_are_independent(plain.make(probing_weight(5, 48, torch.float32), None), rows)
