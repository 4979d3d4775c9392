"""What rank 0 tells the other ranks: which part of a step they compute with it."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from worker.engine.cuda.batch.step_plan import StepPlan
from worker.engine_link.engine_frames import FrameReader, to_frame

RECEIVE_BYTES = 1 << 18
NO_ROWS = np.zeros(0, np.int64)


class RunStep(msgspec.Struct, frozen=True, tag="step"):
    """The model's part of one step, and the page table as it must be for it."""

    plan: StepPlan
    max_pages: int  # of a row
    page_updates: npt.NDArray[np.int32]  # [2, num_changes], as DevicePageTable has them
    reads_hidden: bool = False  # somebody wants more of it than logits
    chooses_late: bool = False  # its tokens come with an order of their own
    adapters: npt.NDArray[np.int64] = NO_ROWS  # [num_rows], by number; nothing: none has one


class RunHead(msgspec.Struct, frozen=True, tag="head"):
    """Logits of rows that rank 0 shares."""

    num_rows: int


class KeepTokens(msgspec.Struct, frozen=True, tag="keep"):
    """The tokens that the last step's samples chose, which rank 0 shares."""

    sample_rows: npt.NDArray[np.int64]  # [num_samples], of the page table


class StoredPair(NamedTuple):
    """A pair of a LoRA adapter: bytes of the model's dtype."""

    down: npt.NDArray[np.uint8]  # [rank, bytes of in_features]
    up: npt.NDArray[np.uint8]  # [out_features, bytes of rank]


class KeepAdapter(msgspec.Struct, frozen=True, tag="adapter"):
    """A rank's share of one, for steps that name its number."""

    number: int
    pairs: dict[str, StoredPair]  # by module


class DropAdapters(msgspec.Struct, frozen=True, tag="drop"):
    """No step names these any more."""

    numbers: list[int]


RankOrder = RunStep | RunHead | KeepTokens | KeepAdapter | DropAdapters


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def encode_order(order: RankOrder) -> bytes:
    """One frame, its length included."""
    return to_frame(msgspec.msgpack.encode(order, enc_hook=_from_array))


def decode_order(frame: bytes) -> RankOrder:
    """Its arrays cannot be written to."""
    order: RankOrder = msgspec.msgpack.decode(frame, type=RankOrder, dec_hook=_to_array)
    return order


def _from_array(array: Any) -> _Array:
    assert isinstance(array, np.ndarray)
    return _Array(array.dtype.str, array.shape, array.tobytes())


def _to_array(_: type, value: Any) -> npt.NDArray[Any]:
    array = msgspec.convert(value, _Array)
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


class OrderInbox:
    """A follower's end. Orders are taken from the socket at once, whatever the follower does.

    Rank 0 must never wait for a follower to read while that one waits for rank 0's share of a sum.
    """

    def __init__(self, sock: socket.socket, on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._on_end = on_end
        self._orders: queue.SimpleQueue[RankOrder] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="orders", daemon=True).start()

    def get(self) -> RankOrder:
        """Waits for the next one."""
        return self._orders.get()

    def _receive(self) -> None:
        reader = FrameReader()
        while data := self._sock.recv(RECEIVE_BYTES):
            for frame in reader.feed(data):
                self._orders.put(decode_order(frame))
        self._on_end()
