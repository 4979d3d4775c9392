"""How a model sees: what an image is made into, and the tokens that stand for it."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import msgspec

SIGHT_LEVEL = 3  # the feature level of images that a `SightCard` alone tells
MAX_RATIO = 200  # of an image's long side to its short one


class PixelSize(NamedTuple):
    """Of an image, in pixels."""

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
        """Of an image that has been fitted. None: no fitted one has this size."""
        if size != (self.height, self.width):
            return None
        return ImageGrid(1, self.num_features)

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
        long, short = max(size), min(size)
        if long > MAX_RATIO * short:
            raise BadImageSize(
                f"has {size.width} x {size.height} pixels: one side may be {MAX_RATIO} times as "
                "long as the other"
            )
        least = self.min_pixels
        most = max(min(self.max_pixels, max_features * self.cell**2), least)
        cells = [max(1, round(side / self.cell)) for side in size]
        area = cells[0] * cells[1] * self.cell**2
        if area > most:
            shrink = math.sqrt(size.height * size.width / most)
            cells = [max(1, math.floor(side / shrink / self.cell)) for side in size]
        elif area < least:
            growth = math.sqrt(least / (size.height * size.width))
            cells = [math.ceil(side * growth / self.cell) for side in size]
        return PixelSize(cells[0] * self.cell, cells[1] * self.cell)

    def grid(self, size: PixelSize) -> ImageGrid | None:
        """Of an image that has been fitted. None: no fitted one has this size."""
        if min(size) < self.cell or size.height % self.cell or size.width % self.cell:
            return None
        return ImageGrid(size.height // self.cell, size.width // self.cell)

    @property
    def least(self) -> PixelSize:
        """A size that a fitted image may have."""
        return PixelSize(self.cell, self.cell)


ImageSize: TypeAlias = FixedSize | AreaSize


class SightCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """What frontends make of images, and workers expect of them."""

    image_token_id: int  # one stands in the rendered chat, and one for each feature in the prompt
    size: ImageSize
    resample: int  # Pillow's number of the filter
    rescale_factor: float  # of pixel values, before the mean is taken off
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    # Features of one image have positions of three axes, and what follows goes on behind the
    # longest of them: fewer than its tokens.
    has_axes: bool = False
    is_mutual: bool = False  # the tokens of an image see each other, later ones too
    mark_text: str = ""  # what the rendered chat has for an image; empty: its token
    image_text: str = ""  # what is put there, with its token

    def image_ids(self, grid: ImageGrid) -> list[int]:
        """The tokens that stand for an image."""
        return [self.image_token_id] * grid.num_features
