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
    quantized_layers: dict[str, Any] | None = None


def read_modelopt(section: Section) -> Quantization | None:
    """None where no weights are quantised. Raises ConfigError."""
    config = section.decode(_ModelOpt)
    if config.quant_algo is None:
        return None
    if config.quantized_layers or config.has_zero_point or config.pre_quant_scale:
        raise section.error(f"quant_algo={config.quant_algo!r} in this form is not supported")
    stored: LinearFormat
    match config.quant_algo:
        case "FP8":
            stored = EightBits(FP8, ("_scale",), (WHOLE, WHOLE))
        case "FP8_PER_CHANNEL_PER_TOKEN":
            stored = EightBits(FP8, ("_scale",), (1, WHOLE))
        case "FP8_PB_WO":
            stored = EightBits(FP8, ("_scale",), (_BLOCK, _BLOCK))
        case "NVFP4" if config.group_size in (None, NVFP4_BLOCK):
            stored = Nvfp4("", "_scale_2", is_divisor=False)
        case _:
            raise section.error(
                f"quant_algo={config.quant_algo!r} with group_size={config.group_size} is not "
                "supported"
            )
    return Quantization("modelopt", (FormatRule(stored),))
