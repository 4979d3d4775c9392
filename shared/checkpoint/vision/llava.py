"""LLaVA: images of one size, seen by CLIP or SigLIP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id
from shared.errors import ConfigError
from shared.protocol.image_sizes import FixedSize, PixelSize
from shared.protocol.sight_card import SightCard

# Of the vision models, whether a token for the whole image stands before those of its patches.
_TOWERS = {"clip_vision_model": True, "siglip_vision_model": False}


def llava_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path)
    size, shortest_edge = pixel_size(processor)
    return processor.sight(
        image_token_id(path, config),
        FixedSize(*size, num_tile_features(path, config, size), shortest_edge),
    )


def pixel_size(processor: ImageProcessor) -> tuple[PixelSize, int | None]:
    """And the shortest edge before they are cut out, if they are."""
    size, crop = processor.get("size"), processor.get("crop_size")
    if isinstance(size, int):
        size = {"shortest_edge": size}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    match size:
        case {"height": int(height), "width": int(width)}:
            if not processor.get("do_center_crop", False) or crop == size:
                return PixelSize(height, width), None
        case {"shortest_edge": int(edge)}:
            match crop if processor.get("do_center_crop", crop is not None) else None:
                case {"height": int(height), "width": int(width)} if max(height, width) <= edge:
                    return PixelSize(height, width), edge
    raise processor.unsupported("size", "crop_size")


def num_tile_features(path: Path, config: dict[str, Any], size: PixelSize) -> int:
    """What the tower makes of one image of its size. Raises ConfigError."""
    vision = config.get("vision_config") or {}
    kind, image_size, patch = (
        vision.get(name) for name in ("model_type", "image_size", "patch_size")
    )
    if kind not in _TOWERS:
        raise ConfigError(
            f"{path}/config.json: a vision_config of model_type {kind!r} is not supported; "
            f"supported are {', '.join(_TOWERS)}"
        )
    if not isinstance(patch, int) or [*size] != [image_size, image_size]:
        raise ConfigError(
            f"{path}/config.json: vision_config reads images of {image_size} with patches of "
            f"{patch}, and the image processor makes {size.height} x {size.width}"
        )
    num_features = (size.height // patch) * (size.width // patch) + int(_TOWERS[kind])
    match config.get("vision_feature_select_strategy", "default"):
        case "default":
            return num_features - 1
        case "full":
            return num_features
        case other:
            raise ConfigError(
                f"{path}/config.json: vision_feature_select_strategy={other!r} is not supported"
            )
