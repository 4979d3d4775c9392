"""Linear layers on a GPU: of few rows by whichever product is the fastest for a weight's shape.

A library's products are made for many rows; of few, their time is that of reading the weight, and
there is some to be gained. What is gained depends on shape and GPU, so it is tried at the start.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from shared.telemetry.log import get_logger
from worker.engine.cuda.kernels.skinny_linear import SkinnyScratch, SkinnyTiles, skinny_linear
from worker.engine.layers.linear import Linear, PlainLinear

ROW_COUNTS = (1, 2, 4, 8, 16)

log = get_logger(__name__)

Kernel = tuple[SkinnyTiles, SkinnyScratch]
# Of a weight's shape, of how many layers have it, and of rows. None: by the library.
ChooseTiles = Callable[[tuple[int, int], int, int], tuple[int, int, int] | None]


class SkinnyLinear:
    """Chooses by the number of rows, rounded up to a power of two."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: dict[int, Kernel]
    ) -> None:
        self.weight = weight
        self._bias = bias
        self._kernels = kernels  # by rows, for all layers of the shape; none before they are tried

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self._kernels.get(1 << (len(x) - 1).bit_length())
        if kernel is None:
            return functional.linear(x, self.weight, self._bias)
        return skinny_linear(x, self.weight, self._bias, *kernel)


class SkinnyLinears:
    """Makes layers that are the library's until `settle`; those made afterwards stay so."""

    def __init__(self, choose_tiles: ChooseTiles, device: torch.device) -> None:
        self._choose_tiles = choose_tiles
        self._device = device
        self._num_layers: dict[torch.Size, int] = {}  # of each shape
        self._kernels: dict[torch.Size, dict[int, Kernel]] = {}
        self._is_settled = False

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._is_settled:
            return PlainLinear(weight, bias)
        self._num_layers[weight.shape] = self._num_layers.get(weight.shape, 0) + 1
        kernels = self._kernels.setdefault(weight.shape, {})
        return SkinnyLinear(weight.contiguous(), bias, kernels)

    def settle(self) -> None:
        """Before steps are captured."""
        self._is_settled = True
        for shape, num_layers in self._num_layers.items():
            num_outputs, width = shape
            by_rows = {
                num_rows: SkinnyTiles(*tiles)
                for num_rows in ROW_COUNTS
                if (tiles := self._choose_tiles((num_outputs, width), num_layers, num_rows))
            }
            # Those of one tiling share their scratch: products come one after the other.
            scratch = {
                tiles: SkinnyScratch.of(num_outputs, tiles, self._device)
                for tiles in {*by_rows.values()}
            }
            self._kernels[shape].update(
                {num_rows: (tiles, scratch[tiles]) for num_rows, tiles in by_rows.items()}
            )
            ours = {num_rows: tuple(tiles) for num_rows, tiles in by_rows.items()}
            log.info("linears_tried", shape=tuple(shape), ours=ours)
