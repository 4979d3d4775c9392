"""Qwen2-VL, 2.5, 3 and Qwen 3.5: images in sizes of their own, and positions of three axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id
from shared.errors import ConfigError
from shared.protocol.image_sizes import AreaSize
from shared.protocol.sight_card import SightCard

_DEFAULTS = {
    "resample": 3,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_LEAST, _MOST = 56 * 56, 28 * 28 * 1280  # pixels
_IMAGE_TOKEN_ID = 151655
_IMAGE_TOKEN_IDS = {"qwen3_5": 248056, "qwen3_5_moe": 248056}  # of others, by model_type


def qwen_vl_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS)
    vision = config.get("vision_config") or {}
    for ours, theirs in (
        ("patch_size", "patch_size"),
        ("temporal_patch_size", "temporal_patch_size"),
        ("merge_size", "spatial_merge_size"),
    ):
        if theirs in vision and vision[theirs] != processor.integer(ours):
            raise ConfigError(
                f"{path}/config.json: vision_config has {theirs}={vision[theirs]}, and the image "
                f"processor {ours}={processor.integer(ours)}"
            )
    least, most = _bounds(processor)
    default_id = _IMAGE_TOKEN_IDS.get(str(config.get("model_type")), _IMAGE_TOKEN_ID)
    cell = processor.integer("patch_size") * processor.integer("merge_size")
    sight = processor.sight(image_token_id(path, config, default_id), AreaSize(cell, least, most))
    return replace(sight, has_axes=True)


def _bounds(processor: ImageProcessor) -> tuple[int, int]:
    """Of pixels: by their own names, or by those of edges, which they are not."""
    size = processor.get("size", {})
    if not isinstance(size, dict):
        raise processor.unsupported("size")
    least = processor.get("min_pixels", size.get("shortest_edge", _LEAST))
    most = processor.get("max_pixels", size.get("longest_edge", _MOST))
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise processor.unsupported("size", "min_pixels", "max_pixels")
    return least, most
