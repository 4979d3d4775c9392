"""NVIDIA's ModelOpt: in config.json, or in a hf_quant_config.json of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.eight_bits import FP8, WHOLE, EightBits
from shared.checkpoint.formats.layouts.four_bit_floats import NVFP4_BLOCK, Nvfp4
from shared.checkpoint.formats.linear_format import LinearFormat
from shared.checkpoint.formats.quantization import FormatRule, Quantization
from shared.checkpoint.formats.section import Section

_BLOCK = 128
_BY_LAYER = "MIXED_PRECISION"


class _Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quant_algo: str
    group_size: int | None = None
    has_zero_point: bool = False
    pre_quant_scale: bool = False


class _ModelOpt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quant_algo: str | None
    quant_method: str = "modelopt"
    group_size: int | None = None
    exclude_modules: list[str] | None = None  # they are stored in 16 bits
    ignore: list[str] | None = None
    config_groups: Any = None  # the same, in compressed-tensors' words
    kv_cache_quant_algo: str | None = None
    kv_cache_scheme: Any = None
    producer: Any = None
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    quantized_layers: dict[str, _Layer] | None = None


def read_modelopt(section: Section) -> Quantization | None:
    """None where no weights are quantised. Raises ConfigError."""
    config = section.decode(_ModelOpt)
    if config.quant_algo is None:
        return None
    layers = config.quantized_layers or {}
    if bool(layers) != (config.quant_algo == _BY_LAYER):
        raise section.error(f"quant_algo={config.quant_algo!r} in this form is not supported")
    if not layers:
        whole = _Layer(
            config.quant_algo, config.group_size, config.has_zero_point, config.pre_quant_scale
        )
        return Quantization("modelopt", (FormatRule(_format(section, whole)),))
    names: dict[LinearFormat, list[str]] = {}
    for name, layer in layers.items():
        names.setdefault(_format(section, layer), []).append(name)
    return Quantization(
        "modelopt", tuple(FormatRule(stored, tuple(each)) for stored, each in names.items())
    )


def _format(section: Section, layer: _Layer) -> LinearFormat:
    if layer.has_zero_point or layer.pre_quant_scale:
        raise section.error(f"quant_algo={layer.quant_algo!r} in this form is not supported")
    match layer.quant_algo:
        case "FP8":
            return EightBits(FP8, ("_scale",), (WHOLE, WHOLE))
        case "FP8_PER_CHANNEL_PER_TOKEN":
            return EightBits(FP8, ("_scale",), (1, WHOLE))
        case "FP8_PB_WO":
            return EightBits(FP8, ("_scale",), (_BLOCK, _BLOCK))
        case "NVFP4" if layer.group_size in (None, NVFP4_BLOCK):
            return Nvfp4("", "_scale_2", is_divisor=False)
    raise section.error(
        f"quant_algo={layer.quant_algo!r} with group_size={layer.group_size} is not supported"
    )
