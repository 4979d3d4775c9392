"""The seam to a GPU: an order of work, moments in it, and pieces of work that are replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Work = Callable[[], None]


class Moment(Protocol):
    """A place in the order of work."""

    def wait(self) -> None:
        """Until all work before it is done. Lets other threads run."""
        ...


class GpuDevice(Protocol):
    """Tests have one that does its work as late as it may."""

    @property
    def torch_device(self) -> torch.device: ...

    def empty_host(self, num_values: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that is copied without waiting. Who enqueued work with it may forget it."""
        ...

    def enqueue(self, work: Work) -> None:
        """`work` is done behind all that was enqueued before; it must not wait for its results.

        Raises torch.OutOfMemoryError, with a part of it enqueued.
        """
        ...

    def give_back(self) -> None:
        """Waits for all that was enqueued; memory that is held without use is free for anybody."""
        ...

    def mark(self) -> Moment:
        """Behind all that was enqueued so far."""
        ...

    def begin_graphs(self) -> None:
        """Those that are captured from now on share memory, and none with those before."""
        ...

    def capture(self, work: Work) -> Work:
        """What `work` does to tensors, to be repeated on the same ones without its host code.

        Raises NotCapturable when its host code needs a result of the GPU.
        """
        ...

    def free_bytes(self) -> int:
        """Memory that new tensors may take. Waits for all that was enqueued."""
        ...

    def unused_bytes(self) -> int:
        """Memory that no program holds, as it is now."""
        ...

    def held_bytes(self) -> int:
        """What tensors of this process hold."""
        ...

    def total_bytes(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def num_processors(self) -> int:
        """Multiprocessors."""
        ...

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, as NVIDIA counts: what kernels can do on it."""
        ...

    def peak_bytes(self, work: Work) -> int:
        """What `work` takes at most beyond what there was before. It is run once."""
        ...


def to_pinned(device: GpuDevice, values: npt.NDArray[Any]) -> torch.Tensor:
    """A copy on the host, of the same shape, that goes to the device without waiting."""
    dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
    host = device.empty_host(values.size, dtype).view(values.shape)
    host.numpy()[...] = values
    return host


def upload(device: GpuDevice, values: npt.NDArray[Any]) -> torch.Tensor:
    """A copy on the device, of the same shape. Part of enqueued work."""
    return to_pinned(device, values).to(device.torch_device, non_blocking=True)


def upload_to(device: GpuDevice, target: torch.Tensor, values: npt.NDArray[Any]) -> None:
    """The same, into a tensor of the same shape and dtype."""
    target.copy_(to_pinned(device, values), non_blocking=True)


def upload_tensor(device: GpuDevice, values: torch.Tensor) -> torch.Tensor:
    """The same of a tensor on the host."""
    host = device.empty_host(values.numel(), values.dtype).view(values.shape)
    return host.copy_(values).to(device.torch_device, non_blocking=True)


def download(device: GpuDevice, values: torch.Tensor) -> torch.Tensor:
    """A copy on the host, there behind the work. Part of enqueued work."""
    host = device.empty_host(values.numel(), values.dtype).view(values.shape)
    host.copy_(values, non_blocking=True)
    return host
