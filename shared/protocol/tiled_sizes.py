"""Sizes of images that are cut into tiles of one size: these lie below each other in an array."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from shared.protocol.image_sizes import ImageGrid, PixelSize, check_ratio

_SHRINK = 0.9
_MAX_SIDE = 1 << 20  # pixels


class Tiling(NamedTuple):
    """How the tiles of an image lie."""

    rows: int
    cols: int

    @property
    def num_tiles(self) -> int:
        return self.rows * self.cols


class TilesSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="tiles"):
    """Images are stretched to the tiling that is most like them. Where that has several tiles, the
    whole image is one more, the last. A size is that of their array.
    """

    tile: int  # pixels of a side
    num_features: int  # of a tile
    min_tiles: int
    max_tiles: int

    def tiling(self, size: PixelSize, max_features: int) -> Tiling:
        """Of so many features, unless the fewest tiles have more. Of two that are as much like the
        image, the larger one is taken as long as it has less than twice the image's area.
        """
        check_ratio(size)
        most = max(self.min_tiles, min(self.max_tiles, max_features // self.num_features - 1), 1)
        best, least_difference = Tiling(1, 1), math.inf
        for tiling in sorted(self._tilings(most), key=lambda each: each.num_tiles):
            difference = abs(size.width / size.height - tiling.cols / tiling.rows)
            is_filled = size.width * size.height > 0.5 * self.tile**2 * tiling.num_tiles
            if difference < least_difference or (difference == least_difference and is_filled):
                best, least_difference = tiling, difference
        return best

    def _tilings(self, most: int) -> list[Tiling]:
        """Narrow ones first."""
        sides = range(1, most + 1)
        tilings = (Tiling(rows, cols) for cols in sides for rows in sides)
        return [each for each in tilings if self.min_tiles <= each.num_tiles <= most]

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of what the model reads. Raises BadImageSize."""
        num_tiles = self.tiling(size, max_features).num_tiles
        return PixelSize((num_tiles + (num_tiles > 1)) * self.tile, self.tile)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """Of an image that has been fitted, a row a tile. None: no fitted one has this size."""
        num_tiles, rest = divmod(size.height, self.tile)
        if rest or size.width != self.tile or not 1 <= num_tiles <= self.max_tiles + 1:
            return None
        return ImageGrid(num_tiles, self.num_features)

    def array_size(self, size: PixelSize) -> PixelSize:
        """Of the pixels that carry a fitted image."""
        return size

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        return PixelSize((self.max_tiles + (self.max_tiles > 1)) * self.tile, self.tile)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.tile, self.tile)


class AnyresSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="anyres"):
    """Images are seen twice: stretched to the first tile, and in their shape, amid black, in the
    other tiles, which fill one of `resolutions`. Features of what is black are dropped; each row of
    the others ends in a feature of its own. A size is the image's own.
    """

    tile: int  # pixels of a side
    num_cells: int  # features along it
    resolutions: tuple[tuple[int, int], ...]  # height and width, multiples of `tile`
    max_tiles: int | None = None  # with more, features are scaled to those of so many

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of what the model reads, of at most so many features, unless the fewest tiles
        have more: the image scaled down. Raises BadImageSize.
        """
        check_ratio(size)
        while self._num_features(size) > max_features and max(size) > self.tile:
            size = PixelSize(*(max(1, int(side * _SHRINK)) for side in size))
        return size

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """Of an image that has been fitted. None: no fitted one has this size."""
        if not 1 <= min(size) <= max(size) <= _MAX_SIDE:
            return None
        return ImageGrid(1, self._num_features(size))

    def array_size(self, size: PixelSize) -> PixelSize:
        """Of the pixels that carry a fitted image."""
        return PixelSize((1 + self.tiling(size).num_tiles) * self.tile, self.tile)

    def tiling(self, size: PixelSize) -> Tiling:
        """Of all tiles but the first."""
        height, width = self.resolution(size)
        return Tiling(height // self.tile, width // self.tile)

    def resolution(self, size: PixelSize) -> PixelSize:
        """That which shows most of an image; of several, the one with the least black."""

        def rank(resolution: PixelSize) -> tuple[int, int]:
            scale = min(resolution.width / size.width, resolution.height / size.height)
            scaled = int(size.width * scale) * int(size.height * scale)
            shown = min(scaled, size.width * size.height)
            return shown, shown - resolution.height * resolution.width

        return max((PixelSize(*each) for each in self.resolutions), key=rank)

    def scaled(self, size: PixelSize) -> PixelSize:
        """Of the image within its resolution."""
        height, width = self.resolution(size)
        if width / size.width < height / size.height:
            return PixelSize(min(math.ceil(size.height * (width / size.width)), height), width)
        return PixelSize(height, min(math.ceil(size.width * (height / size.height)), width))

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        return PixelSize(*max(self.resolutions, key=lambda each: each[0] * each[1]))

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.tile, self.tile)

    def _num_features(self, size: PixelSize) -> int:
        rows, cols = self._cells(size)
        return self.num_cells**2 + rows * (cols + 1)

    def _cells(self, size: PixelSize) -> tuple[int, int]:
        """Rows and columns of features that are not black; as transformers rounds."""
        tiling = self.tiling(size)
        rows, cols = tiling.rows * self.num_cells, tiling.cols * self.num_cells
        if size.width / size.height > cols / rows:
            rows -= (rows - int(round(size.height * (cols / size.width), 7))) // 2 * 2
        else:
            cols -= (cols - int(round(size.width * (rows / size.height), 7))) // 2 * 2
        if self.max_tiles is None:
            return rows, cols
        ratio = math.sqrt(rows * cols / (self.max_tiles * self.num_cells**2))
        return (int(rows // ratio), int(cols // ratio)) if ratio > 1.1 else (rows, cols)
