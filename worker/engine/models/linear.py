"""Linear layers with weights in the layout that the processor multiplies fastest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, in_features] -> [num_rows, out]


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
    measured (a lone row, with many input features) is probed for here, and such a row is given a
    companion. `F.linear` in float32 does not have this property for fewer than eight rows.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias
        self._needs_companion = False
        self._needs_companion = self._lone_row_differs(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._needs_companion and len(x) == 1:
            return self._multiply(x.expand(2, -1).contiguous())[:1]
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return output

    def _lone_row_differs(self, weight: torch.Tensor) -> bool:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(4, weight.shape[1], generator=generator).to(weight.dtype)
        return not torch.equal(self._multiply(rows[:1]), self._multiply(rows)[:1])


def choose_linear(dtype: torch.dtype) -> type[PackedLinear] | type[PlainLinear]:
    """PackedLinear where this build of torch has its operators, and they agree with F.linear.

    The operators are private to torch: another version may change or drop them.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator).to(dtype)
    bias = torch.randn(32, generator=generator).to(dtype)
    x = torch.randn(3, 64, generator=generator).to(dtype)
    try:
        packed = PackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError, TypeError):
        return PlainLinear
    is_close = torch.allclose(packed, functional.linear(x, weight, bias), rtol=1e-2, atol=1e-2)
    return PackedLinear if is_close else PlainLinear
