"""Work for which the GPU's memory is too short at the moment: in halves, in quarters..."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shared.errors import GpuMemoryShort

Part = TypeVar("Part")
Result = TypeVar("Result")


def compute_halved(
    part: Part,
    compute: Callable[[Part], Result | None],  # None: there was no memory for it
    halves: Callable[[Part], tuple[Part, Part] | None],  # None: it cannot be cut
) -> list[Result]:
    """The results of the largest parts that have room, in order. Raises GpuMemoryShort."""
    result = compute(part)
    if result is not None:
        return [result]
    both = halves(part)
    if both is None:
        raise GpuMemoryShort
    return [each for half in both for each in compute_halved(half, compute, halves)]
