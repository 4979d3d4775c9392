"""For how many requests a CUDA graph of a decode step is captured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from shared.errors import ConfigError

_FIRST = (1, 2, 4)
_STEP, _WIDE_STEP, _WIDE_FROM = 8, 16, 256


def default_sizes(max_running: int) -> tuple[int, ...]:
    """1, 2, 4, then each eighth up to 256, then each sixteenth; the most that may run is one."""
    narrow = range(_STEP, min(max_running, _WIDE_FROM) + 1, _STEP)
    wide = range(_WIDE_FROM + _WIDE_STEP, max_running + 1, _WIDE_STEP)
    sizes = {size for size in (*_FIRST, *narrow, *wide) if size <= max_running}
    return tuple(sorted(sizes | {max_running}))


def check_sizes(sizes: Sequence[int], max_running: int) -> tuple[int, ...]:
    """Rising, each once. Raises ConfigError."""
    for size in sizes:
        if not 1 <= size <= max_running:
            raise ConfigError(
                f"cuda_graph_sizes has {size}, must be 1 to max_running={max_running}"
            )
    return tuple(sorted(set(sizes)))


def padded_size(sizes: Sequence[int], num_rows: int) -> int | None:
    """The least that has room; None when none has: the step runs without a graph."""
    idx = bisect_left(sizes, num_rows)
    return sizes[idx] if idx < len(sizes) else None
