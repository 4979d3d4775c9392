"""In what weights are stored or made when loaded, and in what keys and values are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from shared.checkpoint.json_file import read_json
from shared.gguf.metadata import CONFIG_SECTION

MadeFormat = Literal["int8", "int4", "fp8"]
KVDTypeName = Literal["auto", "fp8", "int8"]
ActivationsName = Literal["auto", "int8", "bfloat16"]

MODELOPT_FILE = "hf_quant_config.json"
_DENSE_GGUF = ("GGUF F32", "GGUF F16", "GGUF BF16")
_SECTIONS = ("quantization_config", "compression_config")
INT4_GROUP = 128  # inputs that share a scale and a zero point
_MADE: Mapping[MadeFormat, str] = {
    "int8": "int8 by channel",
    "int4": f"int4 in groups of {INT4_GROUP}",
    "fp8": "fp8 by channel",
}
# Nothing comes behind a head that would even out its errors: it has eight bits.
HEAD_FORMAT: Mapping[MadeFormat, MadeFormat] = {"int8": "int8", "int4": "int8", "fp8": "fp8"}


def made_format(kind: MadeFormat) -> str:
    """The format of weights that are stored in 16 bits, and quantised when they are loaded."""
    return f"{_MADE[kind]}, made when loaded"


def modelopt_config(path: Path) -> dict[str, Any]:
    """What ModelOpt wrote beside config.json; empty where there is nothing. Raises ConfigError."""
    return read_json(path / MODELOPT_FILE, dict, {})


def stored_format(path: Path, config: Mapping[str, Any]) -> str:
    """Like "gptq 4-bit", "modelopt NVFP4" or "GGUF Q4_K_M"; empty for 16 and 32 bits. Raises
    ConfigError.
    """
    beside = modelopt_config(path).get("quantization")
    if isinstance(beside, dict) and beside.get("quant_algo"):
        return f"modelopt {beside['quant_algo']}"
    if isinstance(gguf := config.get(CONFIG_SECTION), dict):
        return gguf_format(gguf)
    text_config = config.get("text_config")
    for values in (config, text_config if isinstance(text_config, dict) else {}):
        for name in _SECTIONS:
            if isinstance(section := values.get(name), dict):
                return _named(section)
    return ""


def gguf_format(section: Mapping[str, Any]) -> str:
    """As `stored_format`, of what config.json says where a GGUF file has made it."""
    told = str(section.get("format", "GGUF"))
    return "" if told in _DENSE_GGUF else told


def _named(section: Mapping[str, Any]) -> str:
    method = str(section.get("quant_method", "compressed-tensors"))
    if "bits" in section:
        return f"{method} {section['bits']}-bit"
    if section.get("load_in_4bit"):
        return f"{method} {section.get('bnb_4bit_quant_type', 'fp4')}"
    if section.get("load_in_8bit"):
        return f"{method} int8"
    detail = section.get("format") or section.get("quant_algo") or ""
    return f"{method} {detail}".strip()
