"""The processes that share a model, one a GPU: what they compute together."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

import msgspec
import torch
import torch.distributed as dist

from shared.errors import ConfigError
from worker.engine.device.code_digest import ENGINE_CODE, code_digest
from worker.engine.device.gpu_device import GpuDevice
from worker.engine_link.rank_links import listen_at

# Of a step's sums. A rank that is dead is noticed by its sockets (followers.py), one that hangs by
# the worker, which misses the engine's steps.
TIMEOUT = timedelta(minutes=10)
_PORT = struct.Struct("<H")
_MAX_BUILD_BYTES = 512


class RankSockets:
    """Rank 0 has a socket to each other rank, by rank, and each of these has one to rank 0.

    All ranks call the same methods in the same order. Raises OSError when one is gone.
    """

    def __init__(self, rank: int, size: int, sockets: Sequence[socket.socket]) -> None:
        self.rank = rank
        self.size = size
        self._sockets = sockets

    def gather(self, values: memoryview, parts: memoryview) -> None:
        """All ranks' bytes, those of rank 0 first."""
        self._limit(TIMEOUT)
        self._gather(values, parts)

    def share(self, values: memoryview) -> None:
        """In place: rank 0's bytes."""
        self._limit(TIMEOUT)
        for each in self._sockets:
            if self.rank == 0:
                each.sendall(values)
            else:
                receive(each, values)

    def meet(self) -> None:
        """Waits for the others, as long as it takes."""
        self._limit(None)
        self._gather(memoryview(b"0"), memoryview(bytearray(self.size)))

    def settled(self) -> list[socket.socket]:
        """The sockets for what is sent from now on: each waits as long as it takes."""
        self._limit(None)
        return [*self._sockets]

    def _gather(self, values: memoryview, parts: memoryview) -> None:
        if self.rank != 0:
            (first,) = self._sockets
            first.sendall(values)
            receive(first, parts)
            return
        num_bytes = len(values)
        parts[:num_bytes] = values
        for rank, each in enumerate(self._sockets, 1):
            receive(each, parts[rank * num_bytes : (rank + 1) * num_bytes])
        for each in self._sockets:
            each.sendall(parts)

    def _limit(self, timeout: timedelta | None) -> None:
        for each in self._sockets:
            each.settimeout(None if timeout is None else timeout.total_seconds())


def receive(sock: socket.socket, into: memoryview) -> None:
    """Raises OSError."""
    while into:
        num_bytes = sock.recv_into(into)
        if not num_bytes:
            raise ConnectionError("another rank is gone")
        into = into[num_bytes:]


class RankGroup:
    """All ranks call the same methods in the same order; they are part of enqueued work.

    Tensors are on the group's device, contiguous, and of the same shape on every rank. Those on
    GPUs go through NCCL, those on CPUs through the ranks' own sockets.
    """

    def __init__(self, sockets: RankSockets, *, on_gpu: bool = False) -> None:
        self._sockets = sockets
        self.on_gpu = on_gpu
        self.rank = sockets.rank
        self.size = sockets.size

    @classmethod
    def join(cls, device: GpuDevice, sockets: RankSockets, address: str) -> Self:
        """Waits for the others, as `meet` does. `address` is one of rank 0, which all reach.

        Raises ConfigError when rank 0 would compute by other rules.
        """
        sockets.meet()
        _agree(device, sockets)
        on_gpu = device.torch_device.type != "cpu"
        if on_gpu:
            _join_nccl(device, sockets, address)
        return cls(sockets, on_gpu=on_gpu)

    def sum(self, values: torch.Tensor) -> None:
        """In place: of all ranks' values. On GPUs alone."""
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
        if self.on_gpu:
            dist.all_gather(list(parts.unbind(0)), values)
        else:
            self._sockets.gather(bytes_of(values), bytes_of(parts))
        return parts

    def share(self, values: torch.Tensor) -> None:
        """In place: rank 0's."""
        if self.on_gpu:
            dist.broadcast(values, 0)
        else:
            self._sockets.share(bytes_of(values))

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
        return int(self._parts(torch.tensor([value], device=device)).min())

    def send(self, values: torch.Tensor, rank: int) -> None:
        """Sends to one other rank, which receives as many. On GPUs alone."""
        dist.send(values, rank)

    def receive(self, values: torch.Tensor, rank: int) -> None:
        """Fills `values` with what the other rank sends. On GPUs alone."""
        dist.recv(values, rank)

    def settled(self) -> list[socket.socket]:
        """The sockets, for something else than ranks have in common."""
        return self._sockets.settled()

    def meet(self) -> None:
        """Waits for the others, who read weights, try kernels and compile at their own pace. What
        a device waits for in a sum ends with TIMEOUT.
        """
        self._sockets.meet()


def bytes_of(values: torch.Tensor) -> memoryview:
    """Its own, to be read and written."""
    return values.view(torch.uint8).numpy().data.cast("B")


class _Build(msgspec.Struct, frozen=True):
    """What decides about bits, beside what rank 0 has chosen for all."""

    code: str
    torch: str
    processor: str

    @classmethod
    def of(cls, device: GpuDevice) -> Self:
        name = device.name
        if device.torch_device.type == "cpu":
            name = torch.backends.cpu.get_cpu_capability()
        return cls(code_digest(ENGINE_CODE).hex()[:16], str(torch.__version__), name)


def _agree(device: GpuDevice, sockets: RankSockets) -> None:
    """Raises ConfigError on whom rank 0 has not to do with."""
    own = _Build.of(device)
    said = bytearray(msgspec.json.encode(own).ljust(_MAX_BUILD_BYTES))
    sockets.share(memoryview(said))
    first = msgspec.json.decode(said, type=_Build)
    for name in _Build.__struct_fields__:
        ours, theirs = getattr(own, name), getattr(first, name)
        if ours != theirs:
            raise ConfigError(
                f"rank {sockets.rank} runs with {name} {ours}, rank 0 with {theirs}: all ranks of "
                "a model need the same"
            )


def _join_nccl(device: GpuDevice, sockets: RankSockets, address: str) -> None:
    """Its ranks find each other in a store of torch, of which the others are told the port."""
    port = bytearray(_PORT.size)
    server = listen_at(address, 0) if sockets.rank == 0 else None
    if server is not None:
        port[:] = _PORT.pack(server.getsockname()[1])
    sockets.share(memoryview(port))
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address,
        _PORT.unpack(port)[0],
        sockets.size,
        is_master=server is not None,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=None if server is None else server.detach(),
    )
    dist.init_process_group(
        "nccl",
        store=store,
        rank=sockets.rank,
        world_size=sockets.size,
        timeout=TIMEOUT,
        device_id=device.torch_device,  # connects now, not while it steps
    )
