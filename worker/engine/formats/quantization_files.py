"""Where a checkpoint tells of its quantisation: config.json, or a file of its tool beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.checkpoint.stored_format import MODELOPT_FILE, modelopt_config
from shared.errors import ConfigError
from worker.engine.formats.methods.awq import read_awq
from worker.engine.formats.methods.bits_and_bytes import read_bits_and_bytes
from worker.engine.formats.methods.compressed_tensors import read_compressed_tensors
from worker.engine.formats.methods.fp8 import read_fbgemm, read_fp8
from worker.engine.formats.methods.gpt_oss import read_mxfp4
from worker.engine.formats.methods.gptq import read_gptq
from worker.engine.formats.methods.modelopt import read_modelopt
from worker.engine.formats.methods.section import Section
from worker.engine.formats.quantization import Quantization

METHODS: Mapping[str, Callable[[Section], Quantization | None]] = {
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
    config = read_json(model_path / "config.json", dict)
    text_config = config.get("text_config")
    told = [
        _read(section)
        for values in (config, text_config if isinstance(text_config, dict) else {})
        for section in _sections(model_path / "config.json", values)
    ]
    beside = modelopt_config(model_path).get("quantization")
    if isinstance(beside, dict):
        told.append(read_modelopt(Section(f"{model_path / MODELOPT_FILE}: quantization", beside)))
    _check_agreed(model_path, told)
    return told[0] if told else None


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


def _read(section: Section) -> Quantization | None:
    is_old = section.place.endswith("compression_config")
    method = section.values.get("quant_method", "compressed-tensors" if is_old else None)
    read = METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise ConfigError(
            f"{section.place}: checkpoints quantised by {method or 'an unnamed method'} are not "
            f"supported, only by {', '.join(METHODS)}; take the original in 16 bits"
        )
    return read(section)


def _check_agreed(model_path: Path, told: list[Quantization | None]) -> None:
    names = dict.fromkeys("none" if each is None else each.name for each in told)
    if len(names) > 1:
        raise ConfigError(
            f"the files of {model_path} say different things of its quantisation: "
            f"{'; '.join(names)}"
        )
