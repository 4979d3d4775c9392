"""Work for which the GPU's memory is too short at the moment: in halves, in quarters..."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from shared.errors import GpuMemoryShort
from worker.engine.device.gpu_device import GpuDevice, Work

Part = TypeVar("Part")
Result = TypeVar("Result")


def has_memory(device: GpuDevice, work: Work) -> bool:
    """Enqueues it. If not, all before it is done, and memory that nobody uses was given back."""
    try:
        device.enqueue(work)
        return True
    except torch.OutOfMemoryError:
        pass
    device.give_back()  # not above: the exception holds what `work` had allocated
    return False


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
