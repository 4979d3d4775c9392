"""A GPU device that notes when its work began and ended, by the GPU's clock and by the host's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from worker.engine.device.gpu_device import GpuDevice, Work


@dataclass(frozen=True, slots=True)
class Launch:
    """Work that was enqueued."""

    host_s: float  # that enqueueing it took
    begin: Any = None  # events of the GPU; None on a CPU
    end: Any = None
    was_ahead: bool = False  # all of it was enqueued before the GPU came to it

    def idle_s(self, previous: Launch) -> float:
        """For how long the GPU waited for this work, at most. Once it is done.

        Work that the GPU came to while it was still being enqueued may have made it wait inside.
        """
        pause_s = previous.end.elapsed_time(self.begin) / 1000
        return max(0.0, pause_s) + (0.0 if self.was_ahead else self.host_s)


class TimedDevice:
    """Everything else is the device's own."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._has_events = device.torch_device.type == "cuda"
        self.launches: list[Launch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def enqueue(self, work: Work) -> None:
        if not self._has_events:
            begin_s = time.perf_counter()
            self._device.enqueue(work)
            self.launches.append(Launch(time.perf_counter() - begin_s))
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in ("begin", "end"))

        def marked() -> None:
            begin.record()
            work()
            end.record()

        begin_s = time.perf_counter()
        self._device.enqueue(marked)
        host_s = time.perf_counter() - begin_s
        self.launches.append(Launch(host_s, begin, end, was_ahead=not begin.query()))
