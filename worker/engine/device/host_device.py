"""A CPU in the place of a GPU: to try several ranks where there is none."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

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


class LateHostDevice(HostDevice):
    """Work is done when somebody waits for it: what it waits for itself comes meanwhile."""

    def __init__(self) -> None:
        self._works: deque[Work] = deque()
        self._num_done = 0

    def enqueue(self, work: Work) -> None:
        self._works.append(work)

    def give_back(self) -> None:
        self.do_until(self._num_enqueued)

    def mark(self) -> Moment:
        return _LaterMoment(self, self._num_enqueued)

    def free_bytes(self) -> int:
        self.give_back()
        return super().free_bytes()

    def do_until(self, num_works: int) -> None:
        """So many since the beginning."""
        while self._num_done < num_works:
            self._num_done += 1
            self._works.popleft()()

    @property
    def _num_enqueued(self) -> int:
        return self._num_done + len(self._works)


@dataclass(frozen=True, slots=True)
class _LaterMoment:
    device: LateHostDevice
    num_works: int

    def wait(self) -> None:
        self.device.do_until(self.num_works)


class _NowMoment:
    def wait(self) -> None:
        """All is done already."""
