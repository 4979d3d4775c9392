"""Gemma 3: images of one size, pooled, whose tokens see each other, between tokens of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id, image_words
from shared.errors import ConfigError
from shared.protocol.image_sizes import FixedSize, PixelSize
from shared.protocol.sight_card import SightCard

_DEFAULTS = {"resample": 2, "image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
_IMAGE_TOKEN_ID = 262144
_NUM_TOKENS = 256
# By tokenizer_config.json's names: what the chat template writes, the image, and what ends it.
_TOKENS = {
    "boi_token": "<start_of_image>",
    "image_token": "<image_soft_token>",
    "eoi_token": "<end_of_image>",
}


def gemma3_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS)
    if processor.get("do_pan_and_scan"):
        raise processor.unsupported("do_pan_and_scan")
    start, image, end = image_words(path, _TOKENS)
    sight = processor.sight(
        image_token_id(path, config, _IMAGE_TOKEN_ID),
        FixedSize(*_size(processor, config), _num_features(path, config)),
    )
    return replace(
        sight,
        mark_text=start,
        image_text=f"\n\n{start}{image}{end}\n\n",
        is_mutual=True,
    )


def _size(processor: ImageProcessor, config: dict[str, Any]) -> PixelSize:
    edge = (config.get("vision_config") or {}).get("image_size")
    size = processor.get("size", {})
    if not isinstance(edge, int) or size != {"height": edge, "width": edge}:
        raise ConfigError(
            f"{processor.path}/config.json: vision_config reads images of {edge}, and the image "
            f"processor makes {size}"
        )
    return PixelSize(edge, edge)


def _num_features(path: Path, config: dict[str, Any]) -> int:
    """A square of them, into which the patches of the tower are pooled."""
    num_tokens = config.get("mm_tokens_per_image", _NUM_TOKENS)
    is_number = isinstance(num_tokens, int) and num_tokens > 0
    if not is_number or math.isqrt(num_tokens) ** 2 != num_tokens:
        raise ConfigError(
            f"{path}/config.json: 'mm_tokens_per_image' must be a square number, not {num_tokens!r}"
        )
    return int(num_tokens)
