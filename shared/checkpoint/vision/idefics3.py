"""Idefics 3 and SmolVLM: images in tiles, named by row and column, and the whole image behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id, image_words
from shared.errors import ConfigError
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import SplitSize, TileMarks

_DEFAULTS = {
    "resample": 1,
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
    "size": {"longest_edge": 1456},
    "max_image_size": {"longest_edge": 364},
    "do_image_splitting": True,
}
_IMAGE_TOKEN_ID = 128257
_SIDE, _PATCH, _SCALE = 224, 32, 2
_MAX_TILES, _MAX_EDGE = 16, 4096  # along an edge; pixels, beyond which transformers cuts it
_TOKENS = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
}


def idefics3_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    processor = ImageProcessor.read(path, _DEFAULTS, may_pad=True)  # a batch
    if not processor.get("do_image_splitting"):
        raise processor.unsupported("do_image_splitting")
    tile, edge = _edge(processor, "max_image_size"), _edge(processor, "size")
    num_along = -(-edge // tile)
    if edge > _MAX_EDGE or num_along > _MAX_TILES:
        raise processor.unsupported("size", "max_image_size")
    size = SplitSize(tile, _num_features(path, config, tile), edge)
    sight = processor.sight(image_token_id(path, config, _IMAGE_TOKEN_ID), size)
    return replace(sight, tile_marks=_marks(path, num_along))


def _edge(processor: ImageProcessor, name: str) -> int:
    match processor.get(name):
        case {"longest_edge": int(edge), **others} if edge > 0 and not others:
            return edge
    raise processor.unsupported(name)


def _num_features(path: Path, config: dict[str, Any], tile: int) -> int:
    """The features of a tile. Raises ConfigError."""
    vision = config.get("vision_config") or {}
    side, patch = vision.get("image_size", _SIDE), vision.get("patch_size", _PATCH)
    scale = config.get("scale_factor", _SCALE)
    if side != tile or not isinstance(patch, int) or side // patch % scale:
        raise ConfigError(
            f"{path}/config.json: vision_config reads tiles of {side} in patches of {patch}, "
            f"merged by {scale}, and the image processor makes {tile}"
        )
    return int((side // patch // scale) ** 2)


def _marks(path: Path, num_along: int) -> TileMarks:
    """As the model's tokenizer makes them."""
    tokenizer = TokenizerBundle.from_model_dir(path).tokenizer()
    around, whole = image_words(path, _TOKENS)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    sides = range(1, num_along + 1)
    return TileMarks(
        tiles=tuple(tuple(ids(f"{around}<row_{row}_col_{col}>") for col in sides) for row in sides),
        row_end=ids("\n"),
        whole=ids(f"\n\n{around}{whole}"),
        alone=ids(f"{around}{whole}"),
        last=ids(around),
    )
