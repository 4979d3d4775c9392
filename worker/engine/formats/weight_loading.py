"""From the tensors of a quantised weight to its codes and scales, by its format."""

from __future__ import annotations

from shared.checkpoint.formats.layouts.bits_and_bytes import BitsAndBytes4, BitsAndBytes8
from shared.checkpoint.formats.layouts.column_words import AwqWords, GptqWords
from shared.checkpoint.formats.layouts.eight_bits import EightBits
from shared.checkpoint.formats.layouts.four_bit_floats import ExpertMxfp4, Nvfp4, PackedMxfp4
from shared.checkpoint.formats.layouts.packed_integers import PackedIntegers
from shared.checkpoint.formats.linear_format import LinearFormat
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bits_and_bytes import load_four_bits, load_llm_int8
from worker.engine.formats.stored.column_words import load_awq, load_gptq
from worker.engine.formats.stored.eight_bits import load_eight_bits
from worker.engine.formats.stored.four_bit_floats import load_expert_mxfp4, load_mxfp4, load_nvfp4
from worker.engine.formats.stored.packed_integers import load_packed_integers
from worker.engine.formats.weight_parts import WeightParts


def load_weight(layout: LinearFormat, parts: WeightParts) -> ScaledWeight:
    """Loads heads that the format has checked. Raises ConfigError for values that mean nothing."""
    match layout:
        case AwqWords():
            return load_awq(layout, parts)
        case BitsAndBytes4():
            return load_four_bits(layout, parts)
        case BitsAndBytes8():
            return load_llm_int8(layout, parts)
        case EightBits():
            return load_eight_bits(layout, parts)
        case ExpertMxfp4():
            return load_expert_mxfp4(layout, parts)
        case GptqWords():
            return load_gptq(layout, parts)
        case Nvfp4():
            return load_nvfp4(layout, parts)
        case PackedIntegers():
            return load_packed_integers(layout, parts)
        case PackedMxfp4():
            return load_mxfp4(layout, parts)
    raise AssertionError(f"{layout.name} has a layout, and nothing that reads it")
