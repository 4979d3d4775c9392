"""A GPU that is none: it works on the CPU, and as late as it may."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import torch

from worker.engine.device.gpu_device import Work


class LateDevice:
    """Nothing that was enqueued is done before somebody waits for it.

    Who reads what the GPU has not written yet, or writes what it has not read yet, is found out.
    """

    name = "none, late"
    torch_device = torch.device("cpu")
    num_processors = 2
    capability = (9, 0)
    is_replaying = False  # on any

    def __init__(self, num_bytes: int = 4 << 30) -> None:
        self.num_bytes = num_bytes
        self._works: deque[Work] = deque()
        self._num_done = 0
        self._is_working = False
        self.num_replays = 0
        self.num_graphs = 0
        self.bytes_per_graph = 0
        self._pools: weakref.WeakSet[_GraphPool] = weakref.WeakSet()
        self.begin_graphs()
        self.max_waiting = 0

    def empty_host(self, num_values: int, dtype: torch.dtype) -> torch.Tensor:
        """Full of what nobody wants to read."""
        return torch.full((num_values,), 77, dtype=dtype)

    def enqueue(self, work: Work) -> None:
        self._works.append(work)
        self.max_waiting = max(self.max_waiting, len(self._works))

    def give_back(self) -> None:
        self.mark().wait()

    def mark(self) -> LateMoment:
        """Within work: behind that work, whatever was enqueued since."""
        waiting = 0 if self._is_working else len(self._works)
        return LateMoment(self, self._num_done + waiting)

    def begin_graphs(self) -> None:
        """Memory of graphs that are gone is theirs who come, until others begin."""
        self._pool = _GraphPool()
        self._pools.add(self._pool)

    def capture(self, work: Work) -> Work:
        pool = self._pool
        pool.num_graphs += 1

        def replay() -> None:
            assert pool.num_graphs > 0  # and it lives as long as we
            self.num_replays += 1
            LateDevice.is_replaying = True
            work()
            LateDevice.is_replaying = False

        self.num_graphs += 1
        weakref.finalize(replay, self._forget_graph)
        return replay

    def _forget_graph(self) -> None:
        self.num_graphs -= 1

    def do(self, num_works: int) -> None:
        """All up to so many since the beginning."""
        while self._num_done < num_works:
            self._num_done += 1
            self._is_working = True
            self._works.popleft()()
            self._is_working = False

    def free_bytes(self) -> int:
        self.give_back()
        num_graphs = sum(pool.num_graphs for pool in self._pools)
        return self.num_bytes - num_graphs * self.bytes_per_graph

    def unused_bytes(self) -> int:
        return self.num_bytes

    def held_bytes(self) -> int:
        return 1 << 20

    def total_bytes(self) -> int:
        return self.num_bytes

    def peak_bytes(self, work: Work) -> int:
        work()
        return 1 << 20


class _GraphPool:
    """Lives as long as a graph in it, or as it is the newest."""

    num_graphs = 0  # that were ever captured into it


@dataclass(frozen=True, slots=True)
class LateMoment:
    device: LateDevice
    num_works: int

    def wait(self) -> None:
        self.device.do(self.num_works)
