"""Linear layers with weights in the layout that the processor multiplies fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, in_features] -> [num_rows, out]

NUM_PROBES = 32


class Linears(Protocol):
    """Makes linear layers."""

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """`weight` [out_features, in_features], `bias` [out_features]."""
        ...


class PlainLinear:
    """`F.linear` on the weight as it is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """oneDNN's inner product on a weight that was reordered once: 1.1 to 4 times F.linear's speed.

    A row's result is the same, bit for bit, whatever other rows come with it. The one exception
    measured, a lone row with many input features, is given a companion. `F.linear` in float32 does
    not have this property for fewer than eight rows.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, needs_companion: bool
    ) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias
        self._needs_companion = needs_companion

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._needs_companion and len(x) == 1:
            return self._multiply(x.expand(2, -1).contiguous())[:1]
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return output


class PlainLinears:
    """Makes layers of `F.linear`."""

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return PlainLinear(weight, bias)


class PackedLinears:
    """Makes packed layers; tries out, once for each shape, whether a lone row needs a companion."""

    def __init__(self) -> None:
        self._needs_companion: dict[torch.Size, bool] = {}

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        shape = weight.shape
        if shape not in self._needs_companion:
            self._needs_companion[shape] = _lone_row_differs(weight)
        return PackedLinear(weight, bias, needs_companion=self._needs_companion[shape])


def _lone_row_differs(weight: torch.Tensor) -> bool:
    """Several rows are tried: after rounding to bfloat16 most differences do not show."""
    linear = PackedLinear(weight, None, needs_companion=False)
    rows = torch.randn(NUM_PROBES, weight.shape[1], generator=_generator()).to(weight.dtype)
    together = linear(rows)
    alone = torch.cat([linear(row[None]) for row in rows])
    return not torch.equal(together, alone)


def choose_linears(dtype: torch.dtype) -> Linears:
    """PackedLinears where this build of torch has the operators, and they agree with F.linear.

    The operators are private to torch: another version may change or drop them.
    """
    generator = _generator()
    weight = torch.randn(32, 64, generator=generator).to(dtype)
    bias = torch.randn(32, generator=generator).to(dtype)
    x = torch.randn(3, 64, generator=generator).to(dtype)
    try:
        packed = PackedLinears().make(weight, bias)(x)
    except (AttributeError, RuntimeError, TypeError):
        return PlainLinears()
    is_close = torch.allclose(packed, functional.linear(x, weight, bias), rtol=1e-2, atol=1e-2)
    return PackedLinears() if is_close else PlainLinears()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
