"""LLaVA-NeXT and LLaVA-OneVision: images seen whole, and in tiles of some resolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.vision.image_processor import ImageProcessor
from shared.checkpoint.vision.image_token import image_token_id
from shared.checkpoint.vision.llava import num_tile_features, pixel_size
from shared.errors import ConfigError
from shared.protocol.sight_card import SightCard
from shared.protocol.tiled_sizes import AnyresSize

_COMMON = {
    "resample": 3,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_NEXT = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
}
_SIDES = range(384, 2305, 384)
_ONEVISION = {
    "size": {"height": 384, "width": 384},
    "image_grid_pinpoints": [[height, width] for height in _SIDES for width in _SIDES],
}
_IMAGE_TOKEN_ID, _ONEVISION_TOKEN_ID = 32000, 151646
_ASPECT = "anyres_max_"
_MAX_RESOLUTIONS = 1000


def llava_next_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    return _sight(path, config, _NEXT, _IMAGE_TOKEN_ID, None)


def llava_onevision_sight(path: Path, config: dict[str, Any]) -> SightCard:
    """Raises ConfigError for one that is not supported."""
    aspect = config.get("vision_aspect_ratio", "anyres_max_9")
    most = aspect.removeprefix(_ASPECT) if isinstance(aspect, str) else ""
    if not most.isdecimal() or aspect != _ASPECT + most or not int(most):
        raise ConfigError(f"{path}/config.json: vision_aspect_ratio={aspect!r} is not supported")
    config = {"vision_feature_select_strategy": "full", **config}
    return _sight(path, config, _ONEVISION, _ONEVISION_TOKEN_ID, int(most))


def _sight(
    path: Path,
    config: dict[str, Any],
    defaults: dict[str, Any],
    default_id: int,
    max_tiles: int | None,
) -> SightCard:
    processor = ImageProcessor.read(path, _COMMON | defaults, may_pad=True)  # a batch
    size, edge = pixel_size(processor)
    num_features = num_tile_features(path, config, size)
    num_cells = size.height // config["vision_config"]["patch_size"]
    if size.height != size.width or edge not in (None, size.height):
        raise processor.unsupported("size", "crop_size")
    if num_features != num_cells**2:
        raise ConfigError(
            f"{path}/config.json: its tower makes {num_features} features of a tile, which are no "
            f"{num_cells} x {num_cells}: vision_feature_select_strategy is not supported"
        )
    resolutions = _resolutions(processor, config.get("image_grid_pinpoints"), size.height)
    return processor.sight(
        image_token_id(path, config, default_id),
        AnyresSize(size.height, num_cells, resolutions, max_tiles),
    )


def _resolutions(
    processor: ImageProcessor, of_model: Any, tile: int
) -> tuple[tuple[int, int], ...]:
    """Height and width of each. Raises ConfigError."""
    name = "image_grid_pinpoints"
    given = processor.get(name)
    if of_model is not None and of_model != given:
        raise ConfigError(f"{processor.path}: config.json and the image processor differ in {name}")
    if not isinstance(given, list) or not 0 < len(given) <= _MAX_RESOLUTIONS:
        raise processor.unsupported(name)
    for each in given:
        if not isinstance(each, list) or len(each) != 2:
            raise processor.unsupported(name)
        if not all(isinstance(side, int) and side > 0 and side % tile == 0 for side in each):
            raise ConfigError(f"{processor.path}: {name} {each!r} does not fill tiles of {tile}")
    return tuple((height, width) for height, width in given)
