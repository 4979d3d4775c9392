"""Linear layers on a GPU: of few rows by whichever product is the fastest for a weight's shape.

A library's products are made for many rows; of few, their time is that of reading the weight, and
there is some to be gained. What is gained depends on shape and GPU, so it is tried at the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from shared.telemetry.log import get_logger
from worker.engine.cuda.kernels.skinny_linear import (
    SkinnyScratch,
    SkinnyTiles,
    skinny_linear,
)
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.trial_timer import TrialTimer
from worker.engine.layers.linear import Linear, PlainLinear

ROW_COUNTS = (1, 2, 4, 8, 16)
BLOCKS = ((16, 256), (32, 128), (32, 256), (64, 128))  # of outputs, and of inputs
MIN_BLOCKS = 4  # of inputs, for a program
MAX_SPLITS = 8
PROGRAMS_PER_PROCESSOR = 2
NUM_ROUNDS = 5
MAX_DIFFERENCE = 0.02  # from what the library gives, as a share of it

log = get_logger(__name__)

Kernel = tuple[SkinnyTiles, SkinnyScratch]


class SkinnyLinear:
    """Chooses by the number of rows, rounded up to a power of two."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: dict[int, Kernel]
    ) -> None:
        self.weight = weight
        self._bias = bias
        self._kernels = kernels  # by rows, for all layers of the shape; none before they are tried

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.multiply(x, self._kernels.get(1 << (len(x) - 1).bit_length()))

    def multiply(self, x: torch.Tensor, kernel: Kernel | None) -> torch.Tensor:
        """None: by the library."""
        if kernel is None:
            return functional.linear(x, self.weight, self._bias)
        return skinny_linear(x, self.weight, self._bias, *kernel)


class SkinnyLinears:
    """Makes layers that are the library's until `settle`; those made afterwards stay so."""

    def __init__(self, device: GpuDevice, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._timer = TrialTimer(device, clock)
        self._by_shape: dict[torch.Size, list[SkinnyLinear]] = {}  # that are not tried yet
        self._kernels: dict[torch.Size, dict[int, Kernel]] = {}
        self._is_settled = False

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._is_settled:
            return PlainLinear(weight, bias)
        kernels = self._kernels.setdefault(weight.shape, {})
        linear = SkinnyLinear(weight.contiguous(), bias, kernels)
        self._by_shape.setdefault(weight.shape, []).append(linear)
        return linear

    @torch.inference_mode()
    def settle(self) -> None:
        """Before steps are captured."""
        self._is_settled = True
        for linears in self._by_shape.values():
            self._settle_shape(linears)
        self._by_shape.clear()

    def _settle_shape(self, linears: Sequence[SkinnyLinear]) -> None:
        weight = linears[0].weight
        kernels = [
            (tiles, SkinnyScratch.of(len(weight), tiles, weight.device))
            for tiles in candidates(weight.shape, self._device.num_processors)
        ]
        chosen = {
            num_rows: kernel
            for num_rows in ROW_COUNTS
            if (kernel := self._fastest(linears, num_rows, kernels)) is not None
        }
        self._kernels[weight.shape].update(chosen)
        by_rows = {num_rows: tuple(tiles) for num_rows, (tiles, _) in chosen.items()}
        log.info("linears_tried", shape=tuple(weight.shape), ours=by_rows)

    def _fastest(
        self, linears: Sequence[SkinnyLinear], num_rows: int, kernels: Sequence[Kernel]
    ) -> Kernel | None:
        """None: the library is."""
        weight = linears[0].weight
        x = torch.randn(num_rows, weight.shape[1], device=weight.device).to(weight.dtype)
        wanted = linears[0](x)
        fastest, least_s = None, self._seconds(linears, x, None)
        for kernel in kernels:
            seconds = self._seconds(linears, x, kernel)
            if seconds < least_s and _is_close(linears[0].multiply(x, kernel), wanted):
                fastest, least_s = kernel, seconds
        return fastest

    def _seconds(
        self, linears: Sequence[SkinnyLinear], x: torch.Tensor, kernel: Kernel | None
    ) -> float:
        """How long all layers take in turn: no cache has their weights then, as in a step."""

        def work() -> None:
            for linear in linears:
                linear.multiply(x, kernel)

        return self._timer.seconds(self._device.capture(work), NUM_ROUNDS)


def candidates(shape: torch.Size, num_processors: int) -> list[SkinnyTiles]:
    """Tiles that give all multiprocessors programs, where there are inputs enough for that."""
    num_outputs, width = shape
    found = []
    for block_outputs, block_width in BLOCKS:
        num_blocks = -(-num_outputs // block_outputs)
        num_splits = 1
        while (
            num_splits < MAX_SPLITS
            and num_blocks * num_splits < PROGRAMS_PER_PROCESSOR * num_processors
            and width >= 2 * num_splits * MIN_BLOCKS * block_width
        ):
            num_splits *= 2
        found.append(SkinnyTiles(block_outputs, block_width, num_splits))
    return found


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference, size = (found - wanted).float().norm(), wanted.float().norm()
    return bool(difference <= MAX_DIFFERENCE * size)
