"""In which numbers of rows a library's product gives each row the same bits in any company.

How a library multiplies is chosen by the processor, the number of rows, the shape and the number of
threads: nothing that it promises says whether two of its ways add in the same order. So it is tried
here, and only what was tried is ever computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from worker.engine.layers.linear import Linear

# In how many rows at once a product is computed.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
REFERENCE_SIZES = (256, 16)  # what others have to agree with, in the order of trial
MAX_SMALL_SIZE = 16  # a product that is to be of use has one that is not larger
SHIFT = 5  # of a product's rows against the reference's: no row's place may count
NUM_DIFFERENT_OUTPUTS = 64  # of a probing weight; beyond them it repeats
ONE_BY_ONE = (1,)


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
    with _threads(num_threads):
        return torch.equal(linear(rows[idx])[known], reference[idx[known]])


def _partners(in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs in pairs, far from each other; of an odd number one has none."""
    order = torch.randperm(in_features, generator=torch.Generator().manual_seed(3))
    half = in_features // 2
    return order[:half], order[half : 2 * half]


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
