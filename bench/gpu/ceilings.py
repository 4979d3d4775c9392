"""What this GPU can do: memory read and written in a copy, and matrix products."""

from __future__ import annotations

from typing import NamedTuple

import torch

from bench.gpu.sizes import Sizes
from bench.gpu.stopwatch import device_seconds


class Ceilings(NamedTuple):
    """Measured in the run that is compared with them."""

    bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measure(cls, device: torch.device, sizes: Sizes) -> Ceilings:
        """A copy from one half of the bytes to the other, and a product of random numbers."""
        return cls(_bytes_per_s(sizes.copy_bytes, device), _flops_per_s(sizes.product, device))


def _bytes_per_s(num_bytes: int, device: torch.device) -> float:
    source = torch.ones(num_bytes // 4, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.itemsize / device_seconds(lambda: target.copy_(source))


def _flops_per_s(size: int, device: torch.device) -> float:
    a = torch.randn(size, size, device=device).to(torch.bfloat16)
    return 2 * size**3 / device_seconds(lambda: a @ a)
