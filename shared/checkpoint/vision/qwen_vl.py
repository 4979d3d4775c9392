"""Qwen2-VL, 2.5, 3 and Qwen 3.5: images and videos in sizes of their own, and positions of three
axes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id, image_words
from shared.checkpoint.vision.vision_text import text_config
from shared.errors import ConfigError
from shared.protocol.image_sizes import AreaSize
from shared.protocol.sight_card import SightCard
from shared.protocol.video_card import VideoCard

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
_VIDEO_DEFAULTS = _DEFAULTS | {"min_frames": 4, "max_frames": 768, "fps": 2}
# Of those that write times before moments.
_STAMPED_DEFAULTS = _VIDEO_DEFAULTS | {
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
    "patch_size": 16,
}
_VIDEO_BOUNDS = 128 * 28 * 28, 768 * 28 * 28  # pixels of a frame
_STAMPED_BOUNDS = 128 * 32 * 32, 768 * 32 * 32  # of all frames
_STAMPED = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_POSITIONS_PER_S = {"qwen2_5_vl": 4}
_WORDS = {
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}


def qwen_vl_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS)
    _check_patches(processor, config, "image")
    least, most = _bounds(processor, _LEAST, _MOST)
    default_id = _IMAGE_TOKEN_IDS.get(str(config.get("model_type")), _IMAGE_TOKEN_ID)
    cell = processor.integer("patch_size") * processor.integer("merge_size")
    token_id = image_token_id(path, config, default_id)
    sight = processor.sight(token_id, AreaSize(cell, least, most))
    return replace(sight, has_axes=True, video=_video(path, config, default_id + 1))


def _video(path: Path, config: dict[str, Any], default_id: int) -> VideoCard | None:
    """None: its vocabulary has no token for one. Raises ConfigError for what is not supported."""
    token_id = config.get("video_token_id", default_id)
    if token_id >= text_config(config)["vocab_size"]:
        return None
    kind = str(config.get("model_type"))
    is_stamped = kind in _STAMPED
    processor = ImageProcessor.read_of_videos(
        path, _STAMPED_DEFAULTS if is_stamped else _VIDEO_DEFAULTS
    )
    _check_patches(processor, config, "video")
    if processor.get("cap_pixels_per_frame"):
        raise processor.unsupported("cap_pixels_per_frame")
    least, most = _bounds(processor, *(_STAMPED_BOUNDS if is_stamped else _VIDEO_BOUNDS))
    fps = processor.get("fps")
    if not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise processor.unsupported("fps")
    cell = processor.integer("patch_size") * processor.integer("merge_size")
    norm = processor.sight(token_id, AreaSize(cell, least, most))
    vision = config.get("vision_config") or {}
    mark, begin, end = image_words(path, _WORDS) if is_stamped else ("", "", "")
    return VideoCard(
        token_id=token_id,
        moment_frames=processor.integer("temporal_patch_size"),
        cell=cell,
        min_pixels=least,
        max_pixels=most,
        resample=norm.resample,
        rescale_factor=norm.rescale_factor,
        mean=norm.mean,
        std=norm.std,
        fps=float(fps),
        min_frames=processor.integer("min_frames"),
        max_frames=processor.integer("max_frames"),
        mark=mark,
        begin=begin,
        end=end,
        positions_per_s=vision.get("tokens_per_second", _POSITIONS_PER_S.get(kind, 0)),
    )


def _check_patches(processor: ImageProcessor, config: dict[str, Any], what: str) -> None:
    """Raises ConfigError."""
    vision = config.get("vision_config") or {}
    for ours, theirs in (
        ("patch_size", "patch_size"),
        ("temporal_patch_size", "temporal_patch_size"),
        ("merge_size", "spatial_merge_size"),
    ):
        if theirs in vision and vision[theirs] != processor.integer(ours):
            raise ConfigError(
                f"{processor.path}/config.json: vision_config has {theirs}={vision[theirs]}, and "
                f"the {what} processor {ours}={processor.integer(ours)}"
            )


def _bounds(processor: ImageProcessor, least: int, most: int) -> tuple[int, int]:
    """The bounds of pixels: under their own names, or those of edges, which they are not; else as
    given."""
    size = processor.get("size", {})
    if not isinstance(size, dict):
        raise processor.unsupported("size")
    least = processor.get("min_pixels", size.get("shortest_edge", least))
    most = processor.get("max_pixels", size.get("longest_edge", most))
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise processor.unsupported("size", "min_pixels", "max_pixels")
    return least, most
