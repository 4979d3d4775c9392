"""Where packed weights are put: in memory of this process, or into a file for many."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from shared.errors import ConfigError
from worker.engine.native.native_library import NativeLibrary
from worker.engine.packed.packed_file import PackedWriter

Fill = Callable[[int], object]
"""Writes what is to be placed at an address."""

_CHUNK_BYTES = 32 << 20  # allocated at once, for weights that are smaller
_LINE_BYTES = 64  # where a weight may begin


class WeightMemory(Protocol):
    """Gives places. `num_bytes` of all that were given."""

    num_bytes: int

    def place(self, num_bytes: int, fill: Fill) -> int:
        """Never 0. Raises ConfigError where memory is out."""
        ...


class HeapMemory:
    """A `WeightMemory` of addresses, which are freed with it."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._free_start, self._num_free_bytes = 0, 0  # of the last chunk
        self.num_bytes = 0

    def place(self, num_bytes: int, fill: Fill) -> int:
        """Raises ConfigError where memory is out."""
        num_bytes = -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
        if num_bytes > self._num_free_bytes:
            self._add_chunk(max(num_bytes, _CHUNK_BYTES))
        start = self._free_start
        self._free_start += num_bytes
        self._num_free_bytes -= num_bytes
        self.num_bytes += num_bytes
        fill(start)
        return start

    def _add_chunk(self, num_bytes: int) -> None:
        chunk: int | None = self._library.allocate(num_bytes)
        if chunk is None:
            raise ConfigError(f"no memory for a weight of {num_bytes >> 20} MiB")
        weakref.finalize(self, self._library.free, chunk)
        self._free_start, self._num_free_bytes = chunk, num_bytes


class FileMemory:
    """A `WeightMemory` of offsets in a file. What it places may raise OSError and NoRoom, too."""

    def __init__(self, writer: PackedWriter) -> None:
        self._writer = writer
        self._staged = torch.empty(0, dtype=torch.uint8)
        self.num_bytes = 0

    def place(self, num_bytes: int, fill: Fill) -> int:
        """One after the other, through the same memory."""
        if num_bytes > len(self._staged):
            self._staged = torch.empty(num_bytes, dtype=torch.uint8)
        address = self._staged.data_ptr()
        fill(address)
        self.num_bytes += num_bytes
        return self._writer.append(self._staged.numpy().data[:num_bytes])


def place_tensor(memory: WeightMemory, tensor: torch.Tensor) -> int:
    """Its values, one after the other."""
    tensor = tensor.contiguous()
    return memory.place(
        tensor.nbytes, lambda address: ctypes.memmove(address, tensor.data_ptr(), tensor.nbytes)
    )
