"""The memory of a GPU: what no program holds, and what happens where it is too short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from shared.errors import ConfigError, GpuMemoryShort
from worker.engine.device.gpu_device import GpuDevice, Work

# Of torch's allocator, of the driver, of Triton when it loads a kernel; of cuBLAS.
_WORDS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
GRAIN_S = 2.0

Part = TypeVar("Part")
Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Also when something else has failed on the way out: the capture of a graph does."""
    cause: BaseException | None = error
    while cause is not None:
        if any(words in str(cause) for words in _WORDS):
            return True
        cause = cause.__context__
    return False


@contextmanager
def memory_for(what: str, remedy: str) -> Iterator[None]:
    """Raises ConfigError where the GPU has no memory for it."""
    try:
        yield
    except (RuntimeError, GpuMemoryShort) as exc:
        if isinstance(exc, RuntimeError) and not is_out_of_memory(exc):
            raise
        raise ConfigError(f"the GPU has no memory for {what}; {remedy}") from None


class FreeMemory:
    """What no program holds, for those who watch: as it was when the driver was last asked.

    Not at each step, since it may take its time.
    """

    def __init__(self, device: GpuDevice, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._asked_at = clock()
        self._num_bytes = device.unused_bytes()

    def num_bytes(self) -> int:
        now = self._clock()
        if now - self._asked_at >= GRAIN_S:
            self._asked_at, self._num_bytes = now, self._device.unused_bytes()
        return self._num_bytes


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
    """In halves, in quarters and so on, where the memory is too short at the moment.

    The results of the largest parts that have room, in order. Raises GpuMemoryShort.
    """
    result = compute(part)
    if result is not None:
        return [result]
    both = halves(part)
    if both is None:
        raise GpuMemoryShort
    return [each for half in both for each in compute_halved(half, compute, halves)]
