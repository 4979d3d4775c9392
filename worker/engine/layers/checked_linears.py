"""Linear layers on a CPU: a row's result is the same, bit for bit, in any company."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from shared.telemetry.log import get_logger
from worker.engine.layers.linear import Linear, MakeLinear, PackedLinear, PlainLinear
from worker.engine.layers.row_check import (
    ONE_BY_ONE,
    SIZES,
    agreeing_sizes,
    probing_rows,
    probing_weight,
)

MIN_DIVIDED_ROWS = 64

log = get_logger(__name__)


class SizedLinear:
    """A library's product, computed in no other numbers of rows than `sizes`, ascending."""

    def __init__(self, linear: Linear, sizes: Sequence[int]) -> None:
        self._linear = linear
        self._sizes = sizes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        size = self._next_size(len(x))
        if size >= len(x):
            return self._padded(x, size)
        outputs = []
        while len(x) > 0:
            size = self._next_size(len(x))
            outputs.append(self._padded(x[:size], size))
            x = x[size:]
        return torch.cat(outputs)

    def _next_size(self, num_rows: int) -> int:
        """Many rows are divided, to compute no padding; few are padded, to read weights once."""
        if num_rows >= MIN_DIVIDED_ROWS:
            return max(size for size in self._sizes if size <= num_rows)
        return next((size for size in self._sizes if size >= num_rows), self._sizes[-1])

    def _padded(self, x: torch.Tensor, size: int) -> torch.Tensor:
        num_missing = size - len(x)
        if num_missing == 0:
            return self._linear(x)
        return self._linear(functional.pad(x, (0, 0, 0, num_missing)))[: len(x)]


class CheckedLinears:
    """Makes layers of a library's product; tries each shape once, before its first layer."""

    def __init__(
        self,
        name: str,
        make: MakeLinear,
        num_threads: Sequence[int] = (),  # on which they run; else on as many as torch now has
    ) -> None:
        self.name = name
        self._make = make
        self._num_threads = num_threads
        self._sizes: dict[tuple[torch.Size, bool], tuple[int, ...]] = {}

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        kind = (weight.shape, bias is not None)
        if kind not in self._sizes:
            self._sizes[kind] = self._try(weight, bias)
        return SizedLinear(self._make(weight, bias), self._sizes[kind])

    def account(self) -> str:
        """In a line, for the log: what its trial has shown."""
        kinds = self._sizes.items()
        told = [f"a row's bits do not depend on its company, tried in {len(kinds)} shapes"]
        for ((out_features, in_features), _), sizes in kinds:
            if sizes == ONE_BY_ONE:
                told.append(f"{in_features} to {out_features} row by row, for there they do")
            elif missing := set(SIZES) - {*sizes}:
                left_out = ", ".join(map(str, sorted(missing)))
                told.append(f"{in_features} to {out_features} never in {left_out} rows")
        return "; ".join(told)

    def _try(self, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[int, ...]:
        out_features, in_features = weight.shape
        probe = self._make(
            probing_weight(out_features, in_features, weight.dtype),
            None if bias is None else torch.zeros_like(bias),
        )
        num_threads = self._num_threads or (torch.get_num_threads(),)
        return agreeing_sizes(probe, probing_rows(in_features, weight.dtype), num_threads)


def choose_linears(dtype: torch.dtype, num_threads: Sequence[int] = ()) -> CheckedLinears:
    """Of oneDNN's packed products where this build of torch has them, and they are right."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator).to(dtype)
    bias = torch.randn(32, generator=generator).to(dtype)
    x = torch.randn(3, 64, generator=generator).to(dtype)
    try:
        packed = PackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError, TypeError) as exc:
        log.warning("packed_products_unavailable", reason=str(exc))
        return CheckedLinears("F.linear", PlainLinear, num_threads)
    if not torch.allclose(packed, functional.linear(x, weight, bias), rtol=1e-2, atol=1e-2):
        log.warning("packed_products_unavailable", reason="they differ from F.linear")
        return CheckedLinears("F.linear", PlainLinear, num_threads)
    return CheckedLinears("oneDNN's packed products", PackedLinear, num_threads)
