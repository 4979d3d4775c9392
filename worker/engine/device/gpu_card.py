"""What is told of a GPU, and of what an engine has there."""

from __future__ import annotations

import torch

from shared.protocol.role_cards import GpuCard
from worker.engine.device.dtype_name import dtype_name
from worker.engine.device.gpu_device import GpuDevice


def gpu_card(
    device: GpuDevice,
    dtype: torch.dtype,
    attention: str,
    weight_bytes: int,
    kv_dtype: torch.dtype | None = None,  # None: as the model's
    num_gpus: int = 1,
    kv_bytes: int = 0,
    graph_bytes: int = 0,
) -> GpuCard:
    """What is free is asked now."""
    return GpuCard(
        name=device.name,
        dtype=dtype_name(dtype),
        kv_dtype=dtype_name(kv_dtype or dtype),
        attention=attention,
        num_gpus=num_gpus,
        total_bytes=device.total_bytes(),
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        graph_bytes=graph_bytes,
        free_bytes=device.free_bytes(),
    )
