"""What a checkpoint's files say about the images that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError
from shared.protocol.model_cards import VisionCard

VISION_ARCHITECTURES = frozenset({"LlavaForConditionalGeneration"})

# Of the vision models, whether a token for the whole image stands before those of its patches.
_TOWERS = {"clip_vision_model": True, "siglip_vision_model": False}
_STEPS = ("do_resize", "do_rescale", "do_normalize")
_FILTERS = range(6)  # Pillow's


def vision_card(path: Path, config: dict[str, Any]) -> VisionCard | None:
    """None for a model that takes no images. Raises ConfigError for one that is not supported."""
    architectures = config.get("architectures") or [""]
    if architectures[0] not in VISION_ARCHITECTURES:
        return None
    processor = _processor(path)
    height, width, shortest_edge = _sizes(path, processor)
    return VisionCard(
        image_token_id=_image_token_id(path, config),
        num_tokens=_num_tokens(path, config, height, width),
        height=height,
        width=width,
        shortest_edge=shortest_edge,
        resample=_resample(path, processor),
        rescale_factor=float(processor.get("rescale_factor", 1 / 255)),
        mean=_three(path, processor, "image_mean"),
        std=_three(path, processor, "image_std"),
    )


def _processor(path: Path) -> dict[str, Any]:
    """preprocessor_config.json, or its later place in processor_config.json."""
    nested = read_json(path / "processor_config.json", dict, {}).get("image_processor")
    if isinstance(nested, dict):
        processor: dict[str, Any] = nested
    else:
        processor = read_json(path / "preprocessor_config.json", dict)
    for name in _STEPS:
        if processor.get(name, True) is not True:
            raise _unsupported(path, f"{name}={processor[name]!r}")
    if processor.get("do_pad"):
        raise _unsupported(path, f"do_pad={processor['do_pad']!r}")
    return processor


def _sizes(path: Path, processor: dict[str, Any]) -> tuple[int, int, int | None]:
    """Height, width, and the shortest edge before they are cut out, if they are."""
    size = processor.get("size")
    if isinstance(size, int):
        size = {"shortest_edge": size}
    crop = processor.get("crop_size")
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    match size:
        case {"height": int(height), "width": int(width)}:
            if not processor.get("do_center_crop", False) or crop == size:
                return height, width, None
        case {"shortest_edge": int(edge)}:
            match crop if processor.get("do_center_crop", crop is not None) else None:
                case {"height": int(height), "width": int(width)} if max(height, width) <= edge:
                    return height, width, edge
    raise _unsupported(path, f"size={size!r} with crop_size={crop!r}")


def _image_token_id(path: Path, config: dict[str, Any]) -> int:
    token_id = config.get("image_token_index", config.get("image_token_id"))
    vocab_size = (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(token_id, int) or not isinstance(vocab_size, int):
        raise ConfigError(f"{path}/config.json names no image_token_index, or no vocab_size")
    if not 0 <= token_id < vocab_size:
        raise ConfigError(
            f"{path}/config.json: image_token_index={token_id} is beyond vocab_size={vocab_size}"
        )
    return token_id


def _num_tokens(path: Path, config: dict[str, Any], height: int, width: int) -> int:
    vision = config.get("vision_config") or {}
    kind, image_size, patch = (
        vision.get(name) for name in ("model_type", "image_size", "patch_size")
    )
    if kind not in _TOWERS:
        raise ConfigError(
            f"{path}/config.json: a vision_config of model_type {kind!r} is not supported; "
            f"supported are {', '.join(_TOWERS)}"
        )
    if not isinstance(patch, int) or (height, width) != (image_size, image_size):
        raise ConfigError(
            f"{path}/config.json: vision_config reads images of {image_size} with patches of "
            f"{patch}, and the image processor makes {height} x {width}"
        )
    num_tokens = (height // patch) * (width // patch) + _TOWERS[kind]
    match config.get("vision_feature_select_strategy", "default"):
        case "default":
            return num_tokens - 1
        case "full":
            return num_tokens
        case other:
            raise ConfigError(
                f"{path}/config.json: vision_feature_select_strategy={other!r} is not supported"
            )


def _resample(path: Path, processor: dict[str, Any]) -> int:
    value = processor.get("resample")
    if not isinstance(value, int) or value not in _FILTERS:
        raise _unsupported(path, f"resample={value!r}")
    return value


def _three(path: Path, processor: dict[str, Any], name: str) -> tuple[float, float, float]:
    """One number for each colour."""
    value = processor.get(name)
    if isinstance(value, list) and len(value) == 3:
        red, green, blue = (float(each) for each in value)
        return red, green, blue
    raise _unsupported(path, f"{name}={value!r}")


def _unsupported(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path}: an image processor with {what} is not supported")
