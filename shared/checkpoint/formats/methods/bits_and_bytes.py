"""What transformers writes of bitsandbytes: NF4, FP4 and LLM.int8()."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.bits_and_bytes import BitsAndBytes4, BitsAndBytes8
from shared.checkpoint.formats.linear_format import LinearFormat
from shared.checkpoint.formats.quantization import FormatRule, Quantization
from shared.checkpoint.formats.section import Section


class _BitsAndBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    quant_method: str = "bitsandbytes"
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_quant_storage: str | None = "uint8"
    bnb_4bit_use_double_quant: bool = False  # the tensors tell
    bnb_4bit_compute_dtype: Any = None
    llm_int8_enable_fp32_cpu_offload: Any = None
    llm_int8_has_fp16_weight: bool = False
    llm_int8_skip_modules: list[str] | None = None  # they are stored in 16 bits
    llm_int8_threshold: Any = None
    _load_in_4bit: Any = None
    _load_in_8bit: Any = None


def read_bits_and_bytes(section: Section) -> Quantization:
    """Raises ConfigError."""
    config = section.decode(_BitsAndBytes)
    if config.load_in_4bit == config.load_in_8bit:
        raise section.error("one of load_in_4bit and load_in_8bit must be true")
    if config.load_in_4bit and config.bnb_4bit_quant_type not in ("nf4", "fp4"):
        raise section.error(f"bnb_4bit_quant_type={config.bnb_4bit_quant_type!r} is not supported")
    if config.load_in_4bit and config.bnb_4bit_quant_storage not in (None, "uint8"):
        raise section.error(
            f"bnb_4bit_quant_storage={config.bnb_4bit_quant_storage!r} is not supported"
        )
    stored: LinearFormat = BitsAndBytes8()
    if config.load_in_4bit:
        stored = BitsAndBytes4(config.bnb_4bit_quant_type)
    return Quantization("bitsandbytes", (FormatRule(stored),))
