"""How tokens are drawn from logits on a device: by kernels, or row by row on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch

from worker.engine.cuda.kernels.draw_code import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.request.token_ranges import Ints
from worker.engine.sampling.gumbel_max import GREEDY_TEMPERATURE, GumbelMax
from worker.engine.sampling.kept_set import kept_threshold
from worker.engine.sampling.row_params import RowParams

_GRAIN = 4  # A column begins at 16 bytes: for another place Triton would compile kernels anew.
_NUM_INTEGERS, _NUM_FLOATS = 2, 3  # columns


@dataclass(frozen=True, slots=True, eq=False)
class DeviceParams:
    """The sampling parameters of a step's rows, on the device: each tensor has one value a row."""

    seeds: torch.Tensor  # int64, the bits of an unsigned one
    top_k: torch.Tensor  # int64, 0 is off
    temperatures: torch.Tensor  # float32
    top_p: torch.Tensor  # float32
    min_p: torch.Tensor  # float32
    keeps_part: bool  # whether some row draws from a part of the vocabulary

    @classmethod
    def of(cls, params: RowParams, device: GpuDevice) -> Self:
        packed, num_rows = pack_params(params), len(params.seeds)
        return cls.unpacked(upload(device, packed), num_rows, keeps_part=keeps_part(params))

    @classmethod
    def unpacked(cls, packed: torch.Tensor, num_rows: int, *, keeps_part: bool) -> Self:
        """Views of what `pack_params` gives."""
        num_integers = _NUM_INTEGERS * _width(num_rows)
        integers = packed[:num_integers].view(_NUM_INTEGERS, -1)[:, :num_rows]
        floats = packed[num_integers:].view(torch.float32).view(_NUM_FLOATS, -1)[:, :num_rows]
        return cls(integers[0], integers[1], floats[0], floats[1], floats[2], keeps_part)


def packed_params_size(num_rows: int) -> int:
    """Values of packed parameters."""
    return (2 * _NUM_INTEGERS + _NUM_FLOATS) * _width(num_rows) // 2


def pack_params(params: RowParams, num_rows: int | None = None) -> Ints:
    """[packed_params_size] int64: what travels in one piece. Rows up to `num_rows` behind those of
    `params` are greedy.
    """
    num_given = len(params.seeds)
    width = _width(num_given if num_rows is None else num_rows)
    packed = np.zeros(packed_params_size(width), np.int64)
    integers = packed[: _NUM_INTEGERS * width].reshape(_NUM_INTEGERS, width)
    floats = packed[_NUM_INTEGERS * width :].view(np.float32).reshape(_NUM_FLOATS, width)
    seeds = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in params.seeds], np.uint64)
    integers[:, :num_given] = seeds.view(np.int64), params.top_k
    floats[:, :num_given] = params.temperature, params.top_p, params.min_p
    return packed


def keeps_part(params: RowParams) -> bool:
    """Whether some row draws, and not from all."""
    limits = (params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0)
    return bool(np.any(limits & (params.temperature > GREEDY_TEMPERATURE)))


def _width(num_rows: int) -> int:
    return -(-num_rows // _GRAIN) * _GRAIN


class Draws(Protocol):
    """The draws of `Sampler`: the same noise, the same kept sets."""

    @property
    def can_be_captured(self) -> bool:
        """Whether a CUDA graph can hold them."""
        ...

    def draw(
        self, logits: torch.Tensor, params: DeviceParams, positions: torch.Tensor
    ) -> torch.Tensor:
        """`logits` [num_rows, vocab_size] float32, `positions` [num_rows] int64.

        [num_rows] int64: token ids, NOT_A_NUMBER or NOTHING_ALLOWED.
        """
        ...


class TritonDraws:
    """Thresholds are looked for only where a row keeps a part."""

    can_be_captured = True

    def draw(
        self, logits: torch.Tensor, params: DeviceParams, positions: torch.Tensor
    ) -> torch.Tensor:
        from worker.engine.cuda.kernels.kept_thresholds import find_kept_thresholds
        from worker.engine.cuda.kernels.sampling_kernels import draw

        if params.keeps_part:
            limits = params.top_k, params.top_p, params.min_p
            thresholds = find_kept_thresholds(logits, params.temperatures, *limits)
        else:
            thresholds = torch.full_like(params.temperatures, -torch.inf)
        return draw(logits, params.temperatures, thresholds, params.seeds, positions)


class HostDraws:
    """Draws by the CPU's own code, with which the kernels are compared."""

    can_be_captured = False

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
