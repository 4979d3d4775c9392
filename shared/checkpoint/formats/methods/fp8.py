"""FP8, as DeepSeek, Qwen and FBGEMM store it."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.eight_bits import FP8, WHOLE, EightBits
from shared.checkpoint.formats.quantization import FormatRule, Quantization
from shared.checkpoint.formats.section import Section


class _Fp8(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quant_method: str = "fp8"
    fmt: str = "e4m3"
    weight_block_size: tuple[int, int] | None = None
    activation_scheme: str | None = None  # activations are not quantised here
    scale_fmt: str | None = None  # scales tell their own dtype
    modules_to_not_convert: list[str] | None = None  # they are stored in 16 bits
    ignored_layers: list[str] | None = None
    dequantize: Any = None
    kv_cache_scheme: Any = None
    kv_cache_quant_method: Any = None


class _Fbgemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quant_method: str = "fbgemm_fp8"
    activation_scale_ub: float | None = None
    modules_to_not_convert: list[str] | None = None


def read_fp8(section: Section) -> Quantization:
    """Blocks have `weight_scale_inv`, whole tensors `weight_scale`. Raises ConfigError."""
    fp8 = section.decode(_Fp8)
    if fp8.fmt != "e4m3":
        raise section.error(f"fmt={fp8.fmt!r} is not supported, only 'e4m3' is")
    block = fp8.weight_block_size or (WHOLE, WHOLE)
    if fp8.weight_block_size is not None and min(block) < 1:
        raise section.error(f"weight_block_size={fp8.weight_block_size} is not supported")
    return Quantization("fp8", (FormatRule(EightBits(FP8, ("_scale_inv", "_scale"), block)),))


def read_fbgemm(section: Section) -> Quantization:
    """A scale for each row. Raises ConfigError."""
    section.decode(_Fbgemm)
    rows = EightBits(FP8, ("_scale",), (1, WHOLE))
    return Quantization("fbgemm_fp8", (FormatRule(rows),))
