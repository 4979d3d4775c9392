"""What the stages of a model give each other in each step."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from itertools import zip_longest
from queue import SimpleQueue

import torch

from worker.engine.cuda.tensor_parallel.rank_group import RankGroup, bytes_of, receive
from worker.engine.models.model_config import ModelStage

_SIZE = struct.Struct("<Q")


class StageLink:
    """One stage's end: rows come from the stage before it, and go to the one behind it, in the
    order of steps. Part of enqueued work.

    Between GPUs they go through NCCL. On CPUs the last stage, which has a socket to each other one,
    passes on what others give each other.
    """

    def __init__(
        self,
        group: RankGroup,
        stage: ModelStage,
        make_rows: Callable[[int], torch.Tensor],  # [num_tokens, 2, hidden_size]
    ) -> None:
        """Nothing else goes over the sockets of the group from now on."""
        self.is_last = stage.is_last
        self._is_first = stage.is_first
        self._group = group
        self._make_rows = make_rows
        self._relay = None if group.on_gpu or not stage.is_last else RowRelay(group.settled())
        self._socket = None
        if not group.on_gpu and not stage.is_last:
            (self._socket,) = group.settled()

    def take(self, num_tokens: int) -> torch.Tensor | None:
        """None: it is the first one."""
        if self._is_first:
            return None
        rows = self._make_rows(num_tokens)
        if self._relay is not None:
            bytes_of(rows)[:] = self._relay.take()
        elif self._socket is not None:
            bytes_of(rows)[:] = _receive_rows(self._socket)
        else:
            self._group.receive(rows, (self._group.rank - 1) % self._group.size)
        return rows

    def give(self, rows: torch.Tensor) -> None:
        if self._socket is not None:
            _send_rows(self._socket, bytes_of(rows.contiguous()))
        else:
            self._group.send(rows.contiguous(), (self._group.rank + 1) % self._group.size)


class RowRelay:
    """Takes rows off each socket at once, so that nobody waits for a stage that still computes."""

    def __init__(self, stages: list[socket.socket]) -> None:
        """`stages`: in their order, without the last one, which is ours."""
        self._rows: SimpleQueue[memoryview] = SimpleQueue()
        for before, behind in zip_longest(stages, stages[1:]):
            rows: SimpleQueue[memoryview] = self._rows if behind is None else SimpleQueue()
            _start(_put_rows, before, rows)
            if behind is not None:
                _start(_pass_rows, rows, behind)

    def take(self) -> memoryview:
        """Waits for them."""
        return self._rows.get()


def _start(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name="rows", daemon=True).start()


def _put_rows(sock: socket.socket, rows: SimpleQueue[memoryview]) -> None:
    """Until a rank is gone, with which this process ends."""
    try:
        while True:
            rows.put(_receive_rows(sock))
    except OSError:
        return


def _pass_rows(rows: SimpleQueue[memoryview], sock: socket.socket) -> None:
    """The same."""
    try:
        while True:
            _send_rows(sock, rows.get())
    except OSError:
        return


def _send_rows(sock: socket.socket, rows: memoryview) -> None:
    sock.sendall(_SIZE.pack(len(rows)))
    sock.sendall(rows)


def _receive_rows(sock: socket.socket) -> memoryview:
    """Raises OSError."""
    size = bytearray(_SIZE.size)
    receive(sock, memoryview(size))
    rows = memoryview(bytearray(_SIZE.unpack(size)[0]))
    receive(sock, rows)
    return rows
