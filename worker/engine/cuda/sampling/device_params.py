"""The sampling parameters of a step's rows on the device: made anew only when the rows change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.sampling.row_params import RowParams
from worker.engine.sampling.temperature import GREEDY_TEMPERATURE


@dataclass(frozen=True, slots=True, eq=False)
class DeviceParams:
    """Each tensor has one value a row."""

    temperatures: torch.Tensor  # float32
    top_k: torch.Tensor  # int64, 0 is off
    top_p: torch.Tensor  # float32
    min_p: torch.Tensor  # float32
    seeds: torch.Tensor  # int64, the bits of an unsigned one
    keep_all: torch.Tensor  # float32, -inf: a threshold that keeps everything
    partial_rows: torch.Tensor | None  # [num_partial] int64, rows that keep a part; None: none

    @classmethod
    def of(cls, params: RowParams, device: GpuDevice) -> Self:
        num_rows = len(params.seeds)
        seeds = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in params.seeds], np.uint64)
        draws = params.temperature > GREEDY_TEMPERATURE
        keeps_part = draws & ((params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0))
        partial = np.flatnonzero(keeps_part)
        return cls(
            temperatures=upload(device, params.temperature),
            top_k=upload(device, params.top_k),
            top_p=upload(device, params.top_p),
            min_p=upload(device, params.min_p),
            seeds=upload(device, seeds.view(np.int64)),
            keep_all=torch.full((num_rows,), -torch.inf, device=device.torch_device),
            partial_rows=upload(device, partial) if len(partial) else None,
        )
