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


class TileMarks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens around the features of tiles, and of the whole image behind them."""

    tiles: tuple[tuple[tuple[int, ...], ...], ...]  # by row and column, before that tile
    row_end: tuple[int, ...]  # between two rows
    whole: tuple[int, ...]  # between tiles and the whole image
    alone: tuple[int, ...]  # before a whole image without tiles
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def ids(self, tiling: Tiling, features: list[int]) -> list[int]:
        """`features` are those of each tile."""
        ids = [*self.first]
        if tiling.num_tiles == 1:
            return [*ids, *self.alone, *features, *self.last]
        for row in range(tiling.rows):
            ids += self.row_end if row else ()
            for col in range(tiling.cols):
                ids += [*self.tiles[row][col], *features]
        return [*ids, *self.whole, *features, *self.last]


class TilesSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="tiles"):
    """Images are stretched to the tiling that is most like them. Where that has several tiles, the
    whole image is one more, the last. A size is that of their array.
    """

    tile: int  # pixels of a side
    num_features: int  # of a tile
    min_tiles: int
    max_tiles: int

    def tiling(self, size: PixelSize, max_features: int) -> Tiling:
        """The tiling of so many features, unless the fewest tiles have more. Of two that are as
        much like the image, the larger one is taken as long as it has less than twice the image's
        area.
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
        """The grid of an image that has been fitted, a row a tile. None: no fitted one has this
        size.
        """
        num_tiles, rest = divmod(size.height, self.tile)
        if rest or size.width != self.tile or not 1 <= num_tiles <= self.max_tiles + 1:
            return None
        return ImageGrid(num_tiles, self.num_features)

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return size

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        return PixelSize((self.max_tiles + (self.max_tiles > 1)) * self.tile, self.tile)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.tile, self.tile)


class CutSize(msgspec.Struct, frozen=True, omit_defaults=True):
    """Images are made into tiles, beside and below each other, of which a size is that. Where there
    are several, the whole image is one more, the last.
    """

    tile: int  # pixels of a side
    num_features: int  # of a tile

    def tiling(self, size: PixelSize) -> Tiling:
        """The tiling of all tiles but the whole image."""
        return Tiling(size.height // self.tile, size.width // self.tile)

    def num_seen(self, size: PixelSize) -> int:
        """How many pictures are seen: the tiles, and the whole image."""
        num_tiles = self.tiling(size).num_tiles
        return num_tiles + (num_tiles > 1)

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return PixelSize(self.num_seen(size) * self.tile, self.tile)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.tile, self.tile)

    def fills_tiles(self, size: PixelSize) -> bool:
        """Whether nothing is left of them."""
        return min(size) >= self.tile and not size.height % self.tile and not size.width % self.tile


class CanvasSize(CutSize, frozen=True, omit_defaults=True, tag="canvas"):
    """Images keep their shape, at the top left of a black canvas of tiles; the whole image is
    stretched to one.
    """

    max_tiles: int

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The smallest canvas in which an image need not shrink, or else that in which it shrinks
        least, of so many features, unless a single tile has more. Raises BadImageSize.
        """
        check_ratio(size)
        most = max(min(self.max_tiles, max_features // self.num_features - 1), 1)
        scales = {
            canvas: min(canvas.height / size.height, canvas.width / size.width)
            for rows in range(1, most + 1)
            for cols in range(1, most // rows + 1)
            for canvas in [PixelSize(rows * self.tile, cols * self.tile)]
        }
        best = min((each for each in scales.values() if each >= 1), default=max(scales.values()))
        fitting = [canvas for canvas, scale in scales.items() if scale == best]
        return min(fitting, key=lambda each: each.height * each.width)

    def scaled(self, size: PixelSize, canvas: PixelSize) -> PixelSize:
        """The size of the image on its canvas: it grows to one tile, and not beyond."""
        height = min(max(size.height, self.tile), canvas.height)
        width = min(max(size.width, self.tile), canvas.width)
        by_width, by_height = width / size.width, height / size.height
        if by_width < by_height:
            return PixelSize(max(min(math.floor(size.height * by_width), height), 1), width)
        return PixelSize(height, max(min(math.floor(size.width * by_height), width), 1))

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of an image that has been fitted, a row a tile. None: no fitted one has this
        size.
        """
        if not self.fills_tiles(size) or self.tiling(size).num_tiles > self.max_tiles:
            return None
        return ImageGrid(self.num_seen(size), self.num_features)

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        return PixelSize(self.max_tiles * self.tile, self.tile)


class SplitSize(CutSize, frozen=True, omit_defaults=True, tag="split"):
    """Images are scaled, up too, to a longest edge, and stretched to fill tiles, which are made
    smaller together for the whole image.
    """

    longest_edge: int

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size that the tiles fill, of so many features, unless a single tile has more. Raises
        BadImageSize.
        """
        check_ratio(size)
        return self._filled(self.scaled(size, max_features))

    def scaled(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of the image before it is stretched."""
        for edge in range(self._num_along * self.tile, self.tile, -self.tile):
            scaled = _with_edge(size, min(edge, self.longest_edge))
            if self.num_seen(self._filled(scaled)) * self.num_features <= max_features:
                return scaled
        return _with_edge(size, min(self.tile, self.longest_edge))

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of an image that has been fitted, a row a tile. None: no fitted one has this
        size.
        """
        if not self.fills_tiles(size) or max(self.tiling(size)) > self._num_along:
            return None
        return ImageGrid(self.num_seen(size), self.num_features)

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        side = self._num_along * self.tile
        return PixelSize(side, side)

    @property
    def _num_along(self) -> int:
        """Tiles along the longest edge."""
        return math.ceil(self.longest_edge / self.tile)

    def _filled(self, size: PixelSize) -> PixelSize:
        """As transformers rounds."""
        height, width = size
        ratio = width / height
        if width >= height:
            width = self._whole(width)
            return PixelSize(self._whole(int(width / ratio)), width)
        height = self._whole(height)
        return PixelSize(height, self._whole(int(height * ratio)))

    def _whole(self, side: int) -> int:
        """The least whole number of tiles, in pixels, that holds a side."""
        return max(math.ceil(side / self.tile), 1) * self.tile


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
        """The grid of an image that has been fitted. None: no fitted one has this size."""
        if not 1 <= min(size) <= max(size) <= _MAX_SIDE:
            return None
        return ImageGrid(1, self._num_features(size))

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return PixelSize((1 + self.tiling(size).num_tiles) * self.tile, self.tile)

    def tiling(self, size: PixelSize) -> Tiling:
        """The tiling of all tiles but the first."""
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
        """The size of the image within its resolution."""
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


def _with_edge(size: PixelSize, edge: int) -> PixelSize:
    """The longer side becomes the edge, the other one even; as transformers rounds."""
    ratio = size.width / size.height
    if size.width >= size.height:
        height = int(edge / ratio)
        return PixelSize(max(height + height % 2, 1), edge)
    width = int(edge * ratio)
    return PixelSize(edge, max(width + width % 2, 1))
