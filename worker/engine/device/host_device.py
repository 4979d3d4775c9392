"""A CPU in the place of a GPU: to try several ranks where there is none."""

from __future__ import annotations

import torch

from shared.machine.host_limits import available_memory_bytes
from worker.engine.device.gpu_device import Moment, Work


class HostDevice:
    """Work is done when it is enqueued."""

    name = "CPU"
    torch_device = torch.device("cpu")
    num_processors = 1
    capability = (9, 0)

    def empty_host(self, num_values: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(num_values, dtype=dtype)

    def enqueue(self, work: Work) -> None:
        work()

    def give_back(self) -> None:
        """All is done already, and nothing is held."""

    def mark(self) -> Moment:
        return _NowMoment()

    def begin_graphs(self) -> None:
        """There are none."""

    def capture(self, work: Work) -> Work:
        return work

    def free_bytes(self) -> int:
        return available_memory_bytes()

    def unused_bytes(self) -> int:
        return available_memory_bytes()

    def held_bytes(self) -> int:
        """Not known: nobody is told of a GPU that is none."""
        return 0

    def total_bytes(self) -> int:
        return available_memory_bytes()

    def peak_bytes(self, work: Work) -> int:
        """Not known, and not asked for: the configuration of ranks says how large their pool is."""
        return 0


class _NowMoment:
    def wait(self) -> None:
        """All is done already."""
