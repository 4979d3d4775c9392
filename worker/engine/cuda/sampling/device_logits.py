"""Logits on a device: what the host has is sent there, without waiting."""

from __future__ import annotations

import numpy as np
import torch

from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.grammar.grammar_matcher import Bitmask


class DeviceLogits:
    """A `LogitPlace`. Part of enqueued work."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def put(self, values: torch.Tensor) -> torch.Tensor:
        return upload(self._device, values.numpy())

    def forbid(self, logits: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
        words = upload(self._device, bitmask)
        bits = words[:, :, None] >> torch.arange(32, device=words.device, dtype=torch.int32)
        is_forbidden = (bits & 1).flatten(1)[:, : logits.shape[1]] == 0
        there = upload(self._device, np.array(rows, np.int64))
        logits.index_copy_(0, there, logits[there].masked_fill_(is_forbidden, -torch.inf))
