"""Percentiles, as numpy and the benchmarks of vLLM and SGLang reckon them."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest ranks; `values` in any order, not empty."""
    return percentile_of_sorted(sorted(values), percent)


def percentile_of_sorted(ordered: Sequence[float], percent: float) -> float:
    """The same, for values that are in order."""
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    if low + 1 == len(ordered):
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (rank - low)
