"""Which number formats a GPU computes."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.device.gpu_device import GpuDevice
from worker.engine_link.engine_config import DTypeName

BFLOAT16_CAPABILITY = (8, 0)  # Ampere: the first whose tensor cores, and Triton's products, have it


def computes_bfloat16(gpu: GpuDevice) -> bool:
    """As fast as it can be expected to."""
    return gpu.capability >= BFLOAT16_CAPABILITY


def check_dtype(name: DTypeName, gpu: GpuDevice | None) -> None:
    """As configured. Raises ConfigError."""
    if name == "bfloat16" and gpu is not None and not computes_bfloat16(gpu):
        major, minor = gpu.capability
        raise ConfigError(
            f"dtype=bfloat16 needs a GPU of compute capability 8.0 or newer, and {gpu.name} has "
            f"{major}.{minor}: dtype=float32, which auto takes, runs on it"
        )
