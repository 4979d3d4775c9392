"""How fast products of few rows are on a GPU: the library's, and ours with several tiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, SkinnyTiles, skinny_linear
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.trial_timer import TrialTimer

BLOCKS = ((16, 256), (32, 128), (32, 256), (64, 128))  # of outputs, and of inputs
MIN_BLOCKS = 4  # of inputs, for a program
MAX_SPLITS = 8
PROGRAMS_PER_PROCESSOR = 2
NUM_ROUNDS = 5
MAX_DIFFERENCE = 0.02  # from what the library gives, as a share of it
# Of weights that take turns in the place of all layers': more than any cache of a GPU holds.
MAX_WEIGHT_BYTES = 512 << 20

Multiply = Callable[[torch.Tensor, torch.Tensor, SkinnyTiles, SkinnyScratch], torch.Tensor]


class LinearTrial:
    """Tries weights [num_outputs, width] of noise: a trial depends on no model's."""

    def __init__(
        self,
        device: GpuDevice,
        shape: tuple[int, int],
        num_layers: int,
        dtype: torch.dtype,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device = device
        self._timer = TrialTimer(device, clock)
        layer_bytes = shape[0] * shape[1] * dtype.itemsize
        num_weights = max(1, min(num_layers, MAX_WEIGHT_BYTES // layer_bytes))
        self._weights = [self._noise(*shape, dtype=dtype) for _ in range(num_weights)]

    @torch.inference_mode()
    def fastest(self, num_rows: int, multiply: Multiply | None = None) -> SkinnyTiles | None:
        """None: the library is. Those whose results are not the library's are never it.

        `multiply`: what is tried, in place of our kernel.
        """
        ours = multiply or _multiply
        weight = self._weights[0]
        x = self._noise(num_rows, weight.shape[1], dtype=weight.dtype)
        wanted = functional.linear(x, weight)
        fastest, least_s = None, self._seconds(lambda each: functional.linear(x, each))
        for tiles in candidates(weight.shape, self._device.num_processors):
            scratch = SkinnyScratch.of(len(weight), tiles, weight.device)

            def product(
                each: torch.Tensor, tiles: SkinnyTiles = tiles, scratch: SkinnyScratch = scratch
            ) -> torch.Tensor:
                return ours(x, each, tiles, scratch)

            seconds = self._seconds(product)
            if seconds < least_s and _is_close(product(weight), wanted):
                fastest, least_s = tiles, seconds
        return fastest

    def _seconds(self, product: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """How long all weights take in turn."""

        def work() -> None:
            for weight in self._weights:
                product(weight)

        return self._timer.seconds(self._device.capture(work), NUM_ROUNDS)

    def _noise(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(*shape, device=self._device.torch_device).to(dtype)


def candidates(shape: Sequence[int], num_processors: int) -> list[SkinnyTiles]:
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


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, tiles: SkinnyTiles, scratch: SkinnyScratch
) -> torch.Tensor:
    return skinny_linear(x, weight, None, tiles, scratch)


def _is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference, size = (found - wanted).float().norm(), wanted.float().norm()
    return bool(difference <= MAX_DIFFERENCE * size)
