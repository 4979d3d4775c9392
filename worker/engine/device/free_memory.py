"""How much memory of a GPU no program holds, for those who watch."""

from __future__ import annotations

import time
from collections.abc import Callable

from worker.engine.device.gpu_device import GpuDevice

GRAIN_S = 2.0


class FreeMemory:
    """As it was when the driver was last asked: not at each step, since it may take its time."""

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
