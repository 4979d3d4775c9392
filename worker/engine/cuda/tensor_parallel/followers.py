"""Rank 0's side: starts the other ranks, tells them what to do, and ends when one of them does."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from worker.engine.cuda.tensor_parallel.rank_group import RankGroup, open_store
from worker.engine.cuda.tensor_parallel.rank_orders import RankOrder, encode_order
from worker.engine.device.gpu_device import GpuDevice
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_launch import engine_environment

CANNOT_LOAD = 2  # the exit code of a follower whose configuration or model cannot be used
OWN_ERROR_S = 10.0


class _Process(NamedTuple):
    rank: int
    process: subprocess.Popen[bytes]
    orders: socket.socket


class Followers:
    """A process for each rank but ours. None outlives us, and we outlive none.

    A sum that a dead rank has no part in would be waited for until it times out, on a GPU in a
    place that no exception reaches: so the whole process ends, and the worker starts another one.
    """

    def __init__(self, group: RankGroup, processes: Sequence[_Process]) -> None:
        self.group = group
        self._processes = processes

    @classmethod
    def start(cls, config: EngineConfig, device: GpuDevice) -> Self:
        """From the main thread: the kernel ends them with the thread that starts them.

        Waits until all have joined. `config` leaves nothing for a rank to find out by itself.
        """
        store, port = open_store(config.tp)
        processes = [_start(config, rank, port) for rank in range(1, config.tp)]
        threading.Thread(target=_end_with, args=(processes,), name="followers", daemon=True).start()
        return cls(RankGroup.join(device, store, 0, config.tp), processes)

    def send(self, order: RankOrder) -> None:
        """Before our own part of it is enqueued."""
        frame = encode_order(order)
        for each in self._processes:
            each.orders.sendall(frame)

    def send_each(self, orders: Sequence[RankOrder]) -> None:
        """One for each of them, by rank."""
        for each, order in zip(self._processes, orders, strict=True):
            each.orders.sendall(encode_order(order))


def _start(config: EngineConfig, rank: int, port: int) -> _Process:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [
                *(sys.executable, "-P", "-m", "worker.engine.cuda.ranks"),
                *(str(rank), str(port), str(theirs.fileno()), config.to_json()),
            ],
            pass_fds=(theirs.fileno(),),
            env=engine_environment(),
        )
    return _Process(rank, process, ours)


def _end_with(processes: Sequence[_Process]) -> None:
    """Waits for the first that ends, and ends this process."""
    poller = select.poll()
    by_fd = {os.pidfd_open(each.process.pid): each for each in processes}
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    ((fd, _), *_) = poller.poll()
    ended = by_fd[fd]
    returncode = ended.process.wait()
    if returncode == CANNOT_LOAD:  # nor can we: our own error reaches the worker
        time.sleep(OWN_ERROR_S)
    sys.stderr.write(
        f"rank {ended.rank} of {len(processes) + 1} has ended with {returncode}: "
        "the engine ends with it\n"
    )
    sys.stderr.flush()
    os._exit(1)
