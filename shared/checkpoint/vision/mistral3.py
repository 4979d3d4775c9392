"""Mistral 3: images in sizes of their own, whose rows end in a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import added_ids, image_token_id
from shared.errors import ConfigError
from shared.protocol.image_sizes import EdgeSize
from shared.protocol.sight_card import SightCard

_DEFAULTS = {
    "resample": 3,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "size": {"longest_edge": 1024},
}
_IMAGE_TOKEN_ID, _PATCH_SIZE, _MERGE_SIZE = 10, 16, 2
_ROW_END, _IMAGE_END = "[IMG_BREAK]", "[IMG_END]"


def mistral3_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS, may_pad=True)  # a batch, and here is none
    size = processor.get("size")
    edge = size.get("longest_edge") if isinstance(size, dict) else None
    patch_size = (config.get("vision_config") or {}).get("patch_size", _PATCH_SIZE)
    merge_size = config.get("spatial_merge_size", _MERGE_SIZE)
    if not isinstance(edge, int) or edge < 1:
        raise processor.unsupported("size")
    if processor.get("do_center_crop"):
        raise processor.unsupported("do_center_crop")
    if not isinstance(patch_size, int) or not isinstance(merge_size, int):
        raise ConfigError(
            f"{path}/config.json: patches of {patch_size!r}, merged by {merge_size!r}, are not "
            "supported"
        )
    row_end_id, last_id = added_ids(path, _ROW_END, _IMAGE_END)
    sight = processor.sight(
        image_token_id(path, config, _IMAGE_TOKEN_ID), EdgeSize(patch_size * merge_size, edge)
    )
    return replace(sight, row_end_id=row_end_id, last_id=last_id)
