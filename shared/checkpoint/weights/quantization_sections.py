"""Where the files of a checkpoint tell of its quantisation, and by which tool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.stored_format import MODELOPT_FILE, modelopt_config
from shared.checkpoint.weights.section import Section
from shared.errors import ConfigError

# The tools whose checkpoints are read.
METHODS = (
    "awq",
    "bitsandbytes",
    "compressed-tensors",
    "fbgemm_fp8",
    "fp8",
    "gptq",
    "modelopt",
    "mxfp4",
)
_SECTIONS = ("quantization_config", "compression_config")


def quantization_sections(model_path: Path) -> list[tuple[str, Section]]:
    """Each with its tool, one of `METHODS`; none for a checkpoint in 16 or 32 bits.

    Raises ConfigError for others.
    """
    place = model_path / "config.json"
    config = read_json(place, dict)
    text_config = config.get("text_config")
    found = [
        (_method(section), section)
        for values in (config, text_config if isinstance(text_config, dict) else {})
        for section in _sections(place, values)
    ]
    beside = modelopt_config(model_path).get("quantization")
    if isinstance(beside, dict):
        section = Section(f"{model_path / MODELOPT_FILE}: quantization", beside)
        found.append(("modelopt", section))
    return found


def _sections(path: Path, values: Mapping[str, Any]) -> list[Section]:
    if isinstance(values.get("quantization"), dict) and "bits" in values["quantization"]:
        raise ConfigError(
            f"{path}: quantization: weights as MLX stores them are not supported; take the "
            "original, or a version in GPTQ, AWQ or compressed-tensors"
        )
    found = [(name, values[name]) for name in _SECTIONS if values.get(name) is not None]
    for name, section in found:
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: '{name}' must be an object, not {section!r}")
    return [Section(f"{path}: {name}", section) for name, section in found]


def _method(section: Section) -> str:
    is_old = section.place.endswith("compression_config")
    method = section.values.get("quant_method", "compressed-tensors" if is_old else None)
    if method not in METHODS:
        raise ConfigError(
            f"{section.place}: checkpoints quantised by {method or 'an unnamed method'} are not "
            f"supported, only by {', '.join(METHODS)}; take the original in 16 bits"
        )
    return str(method)
