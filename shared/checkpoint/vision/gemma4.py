"""Gemma 4: images in sizes of their own, of as many features as a budget allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id, image_words
from shared.checkpoint.vision.vision_text import text_config
from shared.errors import ConfigError
from shared.protocol.image_sizes import BudgetSize
from shared.protocol.sight_card import SightCard

_DEFAULTS = {
    "resample": 3,
    "do_normalize": False,
    "image_mean": (0.0, 0.0, 0.0),
    "image_std": (1.0, 1.0, 1.0),
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "max_soft_tokens": 280,
}
_BUDGETS = (70, 140, 280, 560, 1120)
_IMAGE_TOKEN_ID = 258880
_NUM_PLACES, _NUM_UNIFIED_PLACES = 10240, 1120  # along a side: of patches, and of features
# What the chat template writes for an image, and what stands around its tokens.
_TOKENS = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"}


def gemma4_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS)
    vision = config.get("vision_config") or {}
    patch, pooled = processor.integer("patch_size"), processor.integer("pooling_kernel_size")
    for name in ("patch_size", "pooling_kernel_size"):
        if vision.get(name, _DEFAULTS[name]) != processor.get(name):
            raise ConfigError(
                f"{path}/config.json: vision_config has {name}={vision.get(name)}, and the image "
                f"processor {name}={processor.get(name)}"
            )
    most = processor.integer("max_soft_tokens")
    num_places = vision.get("position_embedding_size", _NUM_PLACES) // pooled
    if config.get("model_type") == "gemma4_unified":
        num_places = vision.get("mm_posemb_size", _NUM_UNIFIED_PLACES)
    if most not in _BUDGETS or most > num_places:
        raise processor.unsupported("max_soft_tokens")
    image, start, end = image_words(path, _TOKENS)
    budgets = tuple(each for each in _BUDGETS if each <= most)
    sight = processor.sight(
        image_token_id(path, config, _IMAGE_TOKEN_ID), BudgetSize(patch * pooled, budgets)
    )
    return replace(
        sight,
        mark_text=image,
        image_text=f"{start}{image}{end}",
        is_mutual=text_config(config).get("use_bidirectional_attention") == "vision",
    )
