"""The processes that share a model, one a GPU: what they compute together."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from worker.engine.device.gpu_device import GpuDevice

ADDRESS = "127.0.0.1"
# Of a step's sums. A rank that is dead is noticed by its process (followers.py), one that hangs by
# the worker, which misses the engine's steps.
TIMEOUT = timedelta(minutes=10)
_AS_LONG_AS_IT_TAKES = timedelta(days=1)


def open_store(num_ranks: int) -> tuple[Store, int]:
    """On a free port of this machine, reached from nowhere else; and the port."""
    with socket.create_server((ADDRESS, 0)) as server:
        port = server.getsockname()[1]
        return _store(port, num_ranks, master_listen_fd=server.detach()), port


def reach_store(port: int, num_ranks: int) -> Store:
    """Another rank's."""
    return _store(port, num_ranks)


def _store(port: int, num_ranks: int, master_listen_fd: int | None = None) -> Store:
    store: Store = dist.TCPStore(  # type: ignore[attr-defined]
        ADDRESS,
        port,
        num_ranks,
        is_master=master_listen_fd is not None,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=master_listen_fd,
    )
    return store


class RankGroup:
    """All ranks call the same methods in the same order; they are part of enqueued work.

    Tensors are on the group's device, contiguous, and of the same shape on every rank.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._num_meetings = 0
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, device: GpuDevice, store: Store, rank: int, size: int) -> Self:
        """Waits for the others, as `meet` does. `store` is one that they all reach."""
        group = cls(store, rank, size)
        group.meet()
        on_gpu = device.torch_device.type != "cpu"
        dist.init_process_group(
            device.collectives,
            store=store,
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
            device_id=device.torch_device if on_gpu else None,  # connects now, not while it steps
        )
        return group

    def sum(self, values: torch.Tensor) -> None:
        """In place: of all ranks' values."""
        dist.all_reduce(values)

    def sum_in_order(self, values: torch.Tensor) -> None:
        """As `sum`, rank after rank: how NCCL goes about a sum depends on how many there are."""
        first, *others = self._parts(values)
        total = first.float()
        for part in others:
            total += part
        values.copy_(total)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """[num_rows, n] -> [num_rows, size * n], those of rank 0 first."""
        return self._parts(values).transpose(0, 1).flatten(1)

    def _parts(self, values: torch.Tensor) -> torch.Tensor:
        """[size, ...], those of rank 0 first."""
        parts = values.new_empty(self.size, *values.shape)
        dist.all_gather(list(parts.unbind(0)), values)
        return parts

    def share(self, values: torch.Tensor) -> None:
        """In place: rank 0's."""
        dist.broadcast(values, 0)

    def first(self, values: Sequence[int], device: torch.device) -> list[int]:
        """Rank 0's. Waits for the others, as `meet` does."""
        self.meet()
        shared = torch.tensor(values, device=device)
        self.share(shared)
        own: list[int] = shared.tolist()
        return own

    def least(self, value: int, device: torch.device) -> int:
        """The least of all ranks' values. Waits for them, as `meet` does."""
        self.meet()
        values = torch.tensor([value], device=device)
        dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return int(values)

    def meet(self) -> None:
        """Waits for the others, who read weights, try kernels and compile at their own pace. What
        a device waits for in a sum ends with TIMEOUT.
        """
        self._num_meetings += 1
        there = [f"meeting {self._num_meetings}: {rank}" for rank in range(self.size)]
        self._store.set(there[self.rank], "here")
        self._store.wait(there, _AS_LONG_AS_IT_TAKES)
