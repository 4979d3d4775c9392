"""What the files of a checkpoint tell of its quantisation, read by the rules of its tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.checkpoint.formats.methods.auto_round import read_auto_round
from shared.checkpoint.formats.methods.awq import read_awq
from shared.checkpoint.formats.methods.bits_and_bytes import read_bits_and_bytes
from shared.checkpoint.formats.methods.compressed_tensors import read_compressed_tensors
from shared.checkpoint.formats.methods.fp8 import read_fbgemm, read_fp8
from shared.checkpoint.formats.methods.gpt_oss import read_mxfp4
from shared.checkpoint.formats.methods.gptq import read_gptq
from shared.checkpoint.formats.methods.modelopt import read_modelopt
from shared.checkpoint.formats.quantization import Quantization
from shared.checkpoint.formats.section import Section
from shared.checkpoint.json_file import read_json
from shared.checkpoint.stored_format import MODELOPT_FILE, modelopt_config
from shared.errors import ConfigError

# The tools whose checkpoints are read.
METHODS: Mapping[str, Callable[[Section], Quantization | None]] = {
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "awq": read_awq,
    "bitsandbytes": read_bits_and_bytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
    "mxfp4": read_mxfp4,
}
_SECTIONS = ("quantization_config", "compression_config")


def read_quantization(model_path: Path) -> Quantization | None:
    """None for a checkpoint in 16 or 32 bits. Raises ConfigError for what we do not know."""
    told = [METHODS[method](section) for method, section in _all_sections(model_path)]
    _check_agreed(model_path, told)
    return told[0] if told else None


def _check_agreed(model_path: Path, told: list[Quantization | None]) -> None:
    names = dict.fromkeys("none" if each is None else each.name for each in told)
    if len(names) > 1:
        raise ConfigError(
            f"the files of {model_path} say different things of its quantisation: "
            f"{'; '.join(names)}"
        )


def _all_sections(model_path: Path) -> list[tuple[str, Section]]:
    """Each with its tool, one of `METHODS`."""
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
    if not isinstance(method, str) or method not in METHODS:
        raise ConfigError(
            f"{section.place}: checkpoints quantised by {method or 'an unnamed method'} are not "
            f"supported, only by {', '.join(METHODS)}; take the original in 16 bits"
        )
    return method
