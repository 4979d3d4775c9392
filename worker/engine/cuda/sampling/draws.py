"""How tokens are drawn from logits on a device: by kernels, or row by row on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch

from worker.engine.cuda.kernels.draw_code import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE, GumbelMax
from worker.engine.sampling.kept_set import kept_threshold
from worker.engine.sampling.row_params import RowParams


@dataclass(frozen=True, slots=True, eq=False)
class DeviceParams:
    """The sampling parameters of a step's rows, on the device: each tensor has one value a row."""

    temperatures: torch.Tensor  # float32
    top_k: torch.Tensor  # int64, 0 is off
    top_p: torch.Tensor  # float32
    min_p: torch.Tensor  # float32
    seeds: torch.Tensor  # int64, the bits of an unsigned one
    thresholds: torch.Tensor  # float32, -inf: all is kept; of partial rows a step writes its own
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
            thresholds=torch.full((num_rows,), -torch.inf, device=device.torch_device),
            partial_rows=upload(device, partial) if len(partial) else None,
        )


class Draws(Protocol):
    """The draws of `Sampler`: the same noise, the same kept sets."""

    def draw(
        self, logits: torch.Tensor, params: DeviceParams, positions: torch.Tensor
    ) -> torch.Tensor:
        """`logits` [num_rows, vocab_size] float32, `positions` [num_rows] int64.

        [num_rows] int64: token ids, NOT_A_NUMBER or NOTHING_ALLOWED.
        """
        ...


class TritonDraws:
    """Thresholds are looked for only of rows that keep a part."""

    def draw(
        self, logits: torch.Tensor, params: DeviceParams, positions: torch.Tensor
    ) -> torch.Tensor:
        from worker.engine.cuda.kernels.kept_thresholds import find_kept_thresholds
        from worker.engine.cuda.kernels.sampling_kernels import draw

        if params.partial_rows is not None:
            find_kept_thresholds(
                logits,
                params.temperatures,
                params.top_k,
                params.top_p,
                params.min_p,
                params.partial_rows,
                params.thresholds,
            )
        return draw(logits, params.temperatures, params.thresholds, params.seeds, positions)


class HostDraws:
    """Draws by the CPU's own code, with which the kernels are compared."""

    def __init__(self, vocab_size: int) -> None:
        self._gumbel_max = GumbelMax(vocab_size)

    def draw(
        self, logits: torch.Tensor, params: DeviceParams, positions: torch.Tensor
    ) -> torch.Tensor:
        token_ids = [
            self._draw_row(logits, params, row, position)
            for row, position in enumerate(positions.tolist())
        ]
        return torch.tensor(token_ids, device=logits.device)

    def _draw_row(self, logits: torch.Tensor, params: DeviceParams, row: int, position: int) -> int:
        values = logits[row].float().cpu().numpy()
        largest = float(values.max())
        if largest != largest or largest == float("inf"):
            return NOT_A_NUMBER
        if largest == float("-inf"):
            return NOTHING_ALLOWED
        temperature = params.temperatures[row].cpu().numpy()
        if temperature <= GREEDY_TEMPERATURE:
            return int(values.argmax())
        scaled = values / temperature
        largest = float(scaled.max())
        threshold = kept_threshold(
            scaled,
            largest,
            int(params.top_k[row]),
            float(params.top_p[row]),
            float(params.min_p[row]),
        )
        seed = int(params.seeds[row]) & 0xFFFFFFFFFFFFFFFF
        return self._gumbel_max.draw(scaled, largest, threshold, seed, position)
