"""MXFP4, as OpenAI stores the experts of GPT-OSS."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.four_bit_floats import ExpertMxfp4
from shared.checkpoint.formats.quantization import FormatRule, Quantization
from shared.checkpoint.formats.section import Section


class _Mxfp4(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quant_method: str = "mxfp4"
    modules_to_not_convert: list[str] | None = None  # they are stored in 16 bits
    dequantize: Any = None


def read_mxfp4(section: Section) -> Quantization:
    """Raises ConfigError."""
    section.decode(_Mxfp4)
    return Quantization("mxfp4", (FormatRule(ExpertMxfp4()),))
