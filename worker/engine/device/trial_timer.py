"""How long work takes on a GPU, for those who try at the start what is the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.engine.device.gpu_device import GpuDevice, Work


class TrialTimer:
    """Times work by the host's clock: what the host does for it counts, too."""

    def __init__(self, device: GpuDevice, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock

    def seconds(self, work: Work, num_rounds: int) -> float:
        """The mean of the rounds; one before does not count, since kernels are compiled in it."""
        self._device.enqueue(work)
        self._device.mark().wait()
        began = self._clock()
        for _ in range(num_rounds):
            self._device.enqueue(work)
        self._device.mark().wait()
        return (self._clock() - began) / num_rounds
