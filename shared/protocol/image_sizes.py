"""Sizes of images: what a model reads of one, and how many features it makes of it."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

MAX_RATIO = 200  # of an image's long side to its short one


class PixelSize(NamedTuple):
    """The size of an image, in pixels."""

    height: int
    width: int


class ImageGrid(NamedTuple):
    """How the features of an image lie: row by row."""

    rows: int
    cols: int

    @property
    def num_features(self) -> int:
        return self.rows * self.cols


class BadImageSize(ValueError):
    """The message goes on behind "the image"."""


class FixedSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="fixed"):
    """All images become of one size."""

    height: int
    width: int
    num_features: int
    shortest_edge: int | None = None  # scaled to it, then cut to the size; None: stretched to it

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of what the model reads."""
        return PixelSize(self.height, self.width)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of an image that has been fitted. None: no fitted one has this size."""
        if size != (self.height, self.width):
            return None
        return ImageGrid(1, self.num_features)

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return size

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        return PixelSize(self.height, self.width)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.height, self.width)


class AreaSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="area"):
    """Images keep their shape, as far as both sides are multiples of `cell` pixels and their area
    is within bounds: a cell is a feature.
    """

    cell: int
    min_pixels: int
    max_pixels: int

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of what the model reads, of at most so many features, unless the least that it
        takes has more. Raises BadImageSize.
        """
        check_ratio(size)
        least = self.min_pixels
        most = max(min(self.max_pixels, max_features * self.cell**2), least)
        cells = [round(side / self.cell) for side in size]  # 0 becomes more below
        area = cells[0] * cells[1] * self.cell**2
        if area > most:
            shrink = math.sqrt(size.height * size.width / most)
            cells = [max(1, math.floor(side / shrink / self.cell)) for side in size]
        elif area < least:
            growth = math.sqrt(least / (size.height * size.width))
            cells = [math.ceil(side * growth / self.cell) for side in size]
        return PixelSize(cells[0] * self.cell, cells[1] * self.cell)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of an image that has been fitted. None: no fitted one has this size."""
        return cells_of(size, self.cell)

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return size

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        side = max(math.isqrt(self.max_pixels) // self.cell, 1) * self.cell
        return PixelSize(side, side)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.cell, self.cell)


class EdgeSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="edge"):
    """Images keep their shape, as far as both sides are multiples of `cell` pixels: a cell is a
    feature. Where a side is longer than `longest_edge`, they are scaled down to it. A single cell
    becomes two: the code that reads them takes no fewer.
    """

    cell: int
    longest_edge: int

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of what the model reads, of at most so many features. Raises BadImageSize."""
        check_ratio(size)
        shrink = max(max(size) / self.longest_edge, 1.0)
        sides = [math.floor(side / shrink) for side in size]
        cells = [max(1, math.ceil(side / self.cell)) for side in sides]
        if cells[0] * cells[1] > max_features:
            shrink = math.sqrt(sides[0] * sides[1] / max_features)
            cells = [max(1, math.floor(side / shrink)) for side in sides]
            cells = [min(each, max_features) for each in cells]
        if cells == [1, 1]:
            cells = [1, 2]
        return PixelSize(cells[0] * self.cell, cells[1] * self.cell)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of an image that has been fitted. None: no fitted one has this size."""
        grid = cells_of(size, self.cell)
        return None if grid == (1, 1) else grid

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return size

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        side = max(math.ceil(self.longest_edge / self.cell), 2) * self.cell
        return PixelSize(side, side)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.cell, 2 * self.cell)


class BudgetSize(msgspec.Struct, frozen=True, omit_defaults=True, tag="budget"):
    """Images keep their shape, as far as both sides are multiples of `cell` pixels: a cell is a
    feature. They are scaled, up too, to as many as one of the model's budgets allows.
    """

    cell: int
    budgets: tuple[int, ...]  # of features, that of least first

    def fit(self, size: PixelSize, max_features: int) -> PixelSize:
        """The size of what the model reads, of the largest budget within `max_features`, or the
        least. Raises BadImageSize.
        """
        check_ratio(size)
        budget = max((each for each in self.budgets if each <= max_features), default=0)
        budget = budget or self.budgets[0]
        growth = math.sqrt(budget * self.cell**2 / (size.height * size.width))
        rows, cols = (math.floor(side * growth / self.cell) for side in size)
        if not rows:
            rows, cols = 1, min(max(1, size.width // size.height), budget)
        elif not cols:
            rows, cols = min(size.height // size.width, budget), 1
        return PixelSize(rows * self.cell, cols * self.cell)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """The grid of an image that has been fitted. None: no fitted one has this size."""
        grid = cells_of(size, self.cell)
        return grid if grid is not None and grid.num_features <= self.budgets[-1] else None

    def array_size(self, size: PixelSize) -> PixelSize:
        """The size of the pixels that carry a fitted image."""
        return size

    @property
    def most(self) -> PixelSize:
        """The fitted size that takes most to see."""
        budget = self.budgets[-1]
        rows = next(each for each in range(math.isqrt(budget), 0, -1) if budget % each == 0)
        return PixelSize(rows * self.cell, budget // rows * self.cell)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.cell, self.cell)


def check_ratio(size: PixelSize) -> None:
    """Raises BadImageSize."""
    if max(size) > MAX_RATIO * min(size):
        raise BadImageSize(
            f"has {size.width} x {size.height} pixels: one side may be {MAX_RATIO} times as long "
            "as the other"
        )


def cells_of(size: PixelSize, cell: int) -> ImageGrid | None:
    """None: they do not fill it."""
    if min(size) < cell or size.height % cell or size.width % cell:
        return None
    return ImageGrid(size.height // cell, size.width // cell)
