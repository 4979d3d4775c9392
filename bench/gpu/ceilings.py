"""What this GPU can do: memory read and written in a copy, and matrix products."""

from __future__ import annotations

from typing import NamedTuple

import torch

from bench.gpu.stopwatch import device_seconds


class Ceilings(NamedTuple):
    """Measured in the run that is compared with them."""

    bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measure(cls, device: torch.device) -> Ceilings:
        """A copy of 4 GB, and products of 8192 rows; on a CPU small ones, to try the program."""
        is_gpu = device.type == "cuda"
        num_values = (2 << 30) if is_gpu else (1 << 20)
        size = 8192 if is_gpu else 256
        return cls(_bytes_per_s(num_values, device), _flops_per_s(size, device))


def _bytes_per_s(num_values: int, device: torch.device) -> float:
    source = torch.ones(num_values, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.itemsize / device_seconds(lambda: target.copy_(source))


def _flops_per_s(size: int, device: torch.device) -> float:
    a = torch.randn(size, size, device=device).to(torch.bfloat16)
    return 2 * size**3 / device_seconds(lambda: a @ a)
