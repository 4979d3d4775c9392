"""Linear layers on a CPU: a row's result is the same, bit for bit, in any company.

How a library multiplies is chosen by the processor, the number of rows, the shape and the number of
threads: nothing that it promises says whether two of its ways add in the same order. So it is tried
here, and only what was tried is ever computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from shared.telemetry.log import get_logger
from worker.engine.device.torch_threads import torch_threads
from worker.engine.layers.linear import Linear, MakeLinear, PackedLinear, PlainLinear

# In how many rows at once a product is computed.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
REFERENCE_SIZES = (256, 16)  # what others have to agree with, in the order of trial
MAX_SMALL_SIZE = 16  # a product that is to be of use has one that is not larger
SHIFT = 5  # of a product's rows against the reference's: no row's place may count
NUM_DIFFERENT_OUTPUTS = 64  # of a probing weight; beyond them it repeats
ONE_BY_ONE = (1,)
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


class _Kind(NamedTuple):
    out_features: int
    in_features: int
    dtype: torch.dtype
    has_bias: bool


class CheckedLinears:
    """Makes layers of a library's product; each shape is tried once a process."""

    def __init__(
        self,
        name: str,
        make: MakeLinear,
        num_threads: Sequence[int] = (),  # on which they run; else on as many as torch now has
    ) -> None:
        self.name = name
        self._make = make
        self._num_threads = tuple(num_threads)
        self._sizes: dict[_Kind, tuple[int, ...]] = {}

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        out_features, in_features = weight.shape
        kind = _Kind(out_features, in_features, weight.dtype, bias is not None)
        num_threads = self._num_threads or (torch.get_num_threads(),)
        self._sizes[kind] = sizes = _try(self._make, kind, num_threads)
        return SizedLinear(self._make(weight, bias), sizes)

    @property
    def is_used(self) -> bool:
        """Whether it has made any."""
        return bool(self._sizes)

    def account(self) -> str:
        """In a line, for the log: what its trial has shown."""
        kinds = self._sizes.items()
        told = [f"a row's bits do not depend on its company, tried in {len(kinds)} shapes"]
        for (out_features, in_features, *_), sizes in kinds:
            if sizes == ONE_BY_ONE:
                told.append(f"{in_features} to {out_features} row by row, for there they do")
            elif missing := set(SIZES) - {*sizes}:
                left_out = ", ".join(map(str, sorted(missing)))
                told.append(f"{in_features} to {out_features} never in {left_out} rows")
        return "; ".join(told)


def choose_linears(dtype: torch.dtype, num_threads: Sequence[int] = ()) -> CheckedLinears:
    """Linears by oneDNN's packed products, where torch was built with them and they are right."""
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


def probing_weight(out_features: int, in_features: int, dtype: torch.dtype) -> torch.Tensor:
    """[out_features, in_features]: each input has a partner of the same weight."""
    generator = torch.Generator().manual_seed(1)
    num_different = min(out_features, NUM_DIFFERENT_OUTPUTS)
    weight = torch.randn(num_different, in_features, generator=generator).to(dtype)
    left, right = _partners(in_features)
    weight[:, right] = weight[:, left]
    return weight.repeat(-(-out_features // num_different), 1)[:out_features].contiguous()


def probing_rows(in_features: int, dtype: torch.dtype) -> torch.Tensor:
    """[max(SIZES), in_features]. Partners are opposites, so that the exact product is zero: what
    comes out is what rounding left, and shows the order of the sum in every value.
    """
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(max(SIZES), in_features, generator=generator).to(dtype)
    left, right = _partners(in_features)
    rows[:, right] = -rows[:, left]
    return rows


@functools.cache
def _try(make: MakeLinear, kind: _Kind, num_threads: tuple[int, ...]) -> tuple[int, ...]:
    out_features, in_features, dtype, has_bias = kind
    probe = make(
        probing_weight(out_features, in_features, dtype),
        torch.zeros(out_features, dtype=dtype) if has_bias else None,
    )
    return agreeing_sizes(probe, probing_rows(in_features, dtype), num_threads)


def agreeing_sizes(
    linear: Linear, rows: torch.Tensor, num_threads: Sequence[int]
) -> tuple[int, ...]:
    """Those of SIZES in which a row's product by a probing weight is the same, bit for bit, on each
    number of threads. ONE_BY_ONE where there is no such group: then nothing has company.
    """
    for reference_size in REFERENCE_SIZES:
        reference = linear(rows[:reference_size].contiguous())
        sizes = tuple(
            size
            for size in SIZES
            if all(_agrees(linear, rows, reference, size, each) for each in num_threads)
        )
        if sizes and sizes[0] <= MAX_SMALL_SIZE:
            return sizes
    return ONE_BY_ONE


def _agrees(
    linear: Linear, rows: torch.Tensor, reference: torch.Tensor, size: int, num_threads: int
) -> bool:
    """As far as both have the same rows."""
    idx = (torch.arange(size) + SHIFT) % len(rows)
    known = idx < len(reference)
    with torch_threads(num_threads):
        return torch.equal(linear(rows[idx])[known], reference[idx[known]])


def _partners(in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs in pairs, far from each other; of an odd number one has none."""
    order = torch.randperm(in_features, generator=torch.Generator().manual_seed(3))
    half = in_features // 2
    return order[:half], order[half : 2 * half]
