"""InternVL 2.5 to 3.5 in transformers' layout: tiles of one size, and the whole image beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id, image_words
from shared.errors import ConfigError
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import TilesSize

_DEFAULTS = {
    "resample": 3,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "size": {"height": 384, "width": 384},
    "min_patches": 1,
    "max_patches": 12,
}
_IMAGE_TOKEN_ID, _NUM_TOKENS = 151667, 256
_SIDE, _PATCH = 448, 14
_MAX_TILES = 256
# What the chat template writes for an image, and what stands around its tokens.
_TOKENS = {
    "context_image_token": "<IMG_CONTEXT>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
}


def internvl_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS)
    image, start, end = image_words(path, _TOKENS)
    tile, num_features = _tile(processor, config)
    least, most = processor.integer("min_patches"), processor.integer("max_patches")
    if least > most or most > _MAX_TILES:
        raise processor.unsupported("min_patches", "max_patches")
    sight = processor.sight(
        image_token_id(path, config, _IMAGE_TOKEN_ID), TilesSize(tile, num_features, least, most)
    )
    return replace(sight, mark_text=image, image_text=f"{start}{image}{end}")


def _tile(processor: ImageProcessor, config: dict[str, Any]) -> tuple[int, int]:
    """Its side in pixels, and its features."""
    where = f"{processor.path}/config.json"
    vision = config.get("vision_config") or {}
    side, patch = _one(vision.get("image_size", _SIDE)), _one(vision.get("patch_size", _PATCH))
    size = processor.get("size")
    if size != {"height": side, "width": side}:
        raise ConfigError(
            f"{where}: vision_config reads tiles of {side}, and the image processor makes {size}"
        )
    if not isinstance(side, int) or not isinstance(patch, int) or patch < 1:
        raise ConfigError(f"{where}: tiles of {side!r} in patches of {patch!r} are not supported")
    strategy = config.get("vision_feature_select_strategy", "default")
    if strategy != "default":
        raise ConfigError(f"{where}: vision_feature_select_strategy={strategy!r} is not supported")
    num_features = config.get("image_seq_length", _NUM_TOKENS)
    if (side // patch * config.get("downsample_ratio", 0.5)) ** 2 != num_features:
        raise ConfigError(
            f"{where}: a tile of {side // patch} x {side // patch} patches does not become "
            f"image_seq_length={num_features!r} features"
        )
    return side, int(num_features)


def _one(value: Any) -> Any:
    """The one length of both sides of a square; anything else as it is."""
    is_square = isinstance(value, list) and len(value) == 2 and value[0] == value[1]
    return value[0] if is_square else value
