from __future__ import annotations

import pytest
import torch

from worker.engine.models import linear
from worker.engine.models.linear import PackedLinears, PlainLinears, choose_linears


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_features", [48, 576, 1536])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, in_features: int) -> None:
    linears = choose_linears(dtype)
    if isinstance(linears, PlainLinears):
        pytest.skip("this build of torch has no packed linears")
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(96, in_features, generator=generator).to(dtype)
    layer = linears.make(weight, None)
    rows = torch.randn(200, in_features, generator=generator).to(dtype)
    together = layer(rows)
    for num_rows in (1, 2, 3, 5, 8, 17, 64, 100):
        for start in (0, 40, 99):
            part = layer(rows[start : start + num_rows].contiguous())
            assert torch.equal(part, together[start : start + num_rows])


def test_without_the_private_operators_the_plain_ones_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise AttributeError("no such operator")

    assert isinstance(choose_linears(torch.float32), PackedLinears)
    monkeypatch.setattr(linear, "PackedLinear", missing)
    plain = choose_linears(torch.float32)
    assert isinstance(plain, PlainLinears)
    x, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    assert torch.equal(plain.make(weight, bias)(x), torch.nn.functional.linear(x, weight, bias))
