"""Indices of tokens that lie one behind the other, row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def ranges_before(ends: Ints, lens: Ints, out_ends: Ints) -> Ints:
    """[ends[i] - lens[i], ends[i]) for each i, one behind the other; `out_ends` sums up `lens`."""
    shifts: Ints = (ends - out_ends).repeat(lens)
    shifts += np.arange(len(shifts))
    return shifts
