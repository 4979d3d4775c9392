"""A GPU that is none, and has little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worker.engine.device.gpu_device import Work
from worker.engine.device.host_device import HostDevice


class ShortDevice(HostDevice):
    """Counts the bytes that a piece of work holds at once, and has no more than `room_bytes`.

    As on a GPU, memory is taken when work is enqueued, and a graph's replay takes none.
    """

    def __init__(self) -> None:
        self.room_bytes = 1 << 40
        self.peak_used_bytes = 0
        self.num_failures = 0
        self.num_given_back = 0
        self._is_replaying = False

    def enqueue(self, work: Work) -> None:
        try:
            with Count(self):
                work()
        except torch.OutOfMemoryError:
            self.num_failures += 1
            raise

    def give_back(self) -> None:
        self.num_given_back += 1

    def peak_bytes(self, work: Work) -> int:
        before, self.peak_used_bytes = self.peak_used_bytes, 0
        self.enqueue(work)
        taken, self.peak_used_bytes = self.peak_used_bytes, before
        return taken

    def capture(self, work: Work) -> Work:
        def replay() -> None:
            self._is_replaying = True
            work()
            self._is_replaying = False

        return replay

    def note_used(self, num_bytes: int) -> None:
        """Raises torch.OutOfMemoryError."""
        if self._is_replaying:
            return
        self.peak_used_bytes = max(self.peak_used_bytes, num_bytes)
        if num_bytes > self.room_bytes:
            raise torch.OutOfMemoryError(
                f"out of memory: {num_bytes} bytes, {self.room_bytes} are there"
            )


class Count(TorchDispatchMode):
    """Of memory that operations have made and somebody still holds."""

    def __init__(self, device: ShortDevice) -> None:
        super().__init__()
        self._device = device
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {_address(each) for each in tree_leaves((args, kwargs)) if _is_tensor(each)}
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if _is_tensor(tensor) and _address(tensor) not in given:
                storage = tensor.untyped_storage()
                self._held[_address(tensor)] = StorageWeakRef(storage), storage.nbytes()
        self._held = {at: held for at, held in self._held.items() if not held[0].expired()}
        self._device.note_used(sum(num_bytes for _, num_bytes in self._held.values()))
        return result


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
