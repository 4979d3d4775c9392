"""Llama 4: images in their shape on a canvas of tiles, and the whole image as one more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import added_ids, image_token_id
from shared.errors import ConfigError
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import CanvasSize, TileMarks

_DEFAULTS = {
    "resample": 2,
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
    "size": {"height": 336, "width": 336},
    "max_patches": 16,
}
_SIDE, _PATCH, _SHUFFLE = 448, 14, 0.5
_MAX_TILES = 256
_IMAGE, _FEATURE = "<|image|>", "<|patch|>"
_FIRST, _LAST = "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"


def llama4_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS)
    vision = config.get("vision_config") or {}
    side, patch = vision.get("image_size", _SIDE), vision.get("patch_size", _PATCH)
    size, max_tiles = processor.get("size"), processor.integer("max_patches")
    if size != {"height": side, "width": side}:
        raise ConfigError(
            f"{path}/config.json: vision_config reads tiles of {side}, and the image processor "
            f"makes {size}"
        )
    if processor.get("resize_to_max_canvas") or max_tiles > _MAX_TILES:
        raise processor.unsupported("resize_to_max_canvas", "max_patches")
    if not isinstance(patch, int):
        raise ConfigError(f"{path}/config.json: patches of {patch!r} are not supported")
    num_features = (side // patch * vision.get("pixel_shuffle_ratio", _SHUFFLE)) ** 2
    first, last, beside, below, image = added_ids(path, _FIRST, _LAST, _BESIDE, _BELOW, _IMAGE)
    rows = (range(max_tiles // each) for each in range(1, max_tiles + 1))
    marks = TileMarks(
        tiles=tuple(tuple((beside,) if col else () for col in cols) for cols in rows),
        row_end=(below,),
        whole=(below, image),
        alone=(image,),
        first=(first,),
        last=(last,),
    )
    sight = processor.sight(
        image_token_id(path, config), CanvasSize(side, int(num_features), max_tiles)
    )
    return replace(sight, mark_text=_IMAGE, image_text=_FEATURE, tile_marks=marks)
