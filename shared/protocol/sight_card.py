"""How a model sees: what an image is made into, and the tokens that stand for it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shared.protocol.image_sizes import AreaSize, BudgetSize, EdgeSize, FixedSize, PixelSize
from shared.protocol.tiled_sizes import (
    AnyresSize,
    CanvasSize,
    CutSize,
    SplitSize,
    TileMarks,
    TilesSize,
)
from shared.protocol.video_card import VideoCard

SIGHT_LEVEL = 3  # the feature level of images that a `SightCard` alone tells

ImageSize: TypeAlias = (
    FixedSize | AreaSize | EdgeSize | BudgetSize | TilesSize | AnyresSize | CanvasSize | SplitSize
)


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
    row_end_id: int | None = None  # behind the features of each row but the last
    last_id: int | None = None  # behind those of the last
    tile_marks: TileMarks | None = None  # of images in tiles, which tell where each one lies
    video: VideoCard | None = None  # None: the model takes no videos

    def image_ids(self, size: PixelSize) -> list[int]:
        """The tokens that stand for an image that has been fitted."""
        grid = self.size.grid(size)
        assert grid is not None, "it has been fitted"
        if self.tile_marks is not None and isinstance(self.size, CutSize):
            features = [self.image_token_id] * grid.cols
            return self.tile_marks.ids(self.size.tiling(size), features)
        if self.row_end_id is None or self.last_id is None:
            return [self.image_token_id] * grid.num_features
        row = [self.image_token_id] * grid.cols + [self.row_end_id]
        return [*(row * grid.rows)[:-1], self.last_id]
