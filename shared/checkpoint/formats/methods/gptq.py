"""GPTQ, as AutoGPTQ, GPTQModel and optimum write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.column_words import GptqWords
from shared.checkpoint.formats.methods.group_size import word_sizes_of
from shared.checkpoint.formats.quantization import FormatRule, Quantization, check_pattern
from shared.checkpoint.formats.section import Section

# What is to be added to a stored zero point: the first version wrote one less.
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_NUM_BITS = (2, 4, 8)
_OWN = {"bits", "group_size", "sym", "desc_act", "mse"}  # what a module may have


class _Gptq(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bits: int
    group_size: int
    quant_method: str = "gptq"
    checkpoint_format: str = ""
    format: str = ""
    desc_act: bool | None = None  # its order of columns is in g_idx
    sym: bool | None = None  # zero points are stored in any case
    lm_head: bool | None = None
    dynamic: dict[str, Any] | None = None  # by pattern of a module's name: see `_rules`
    modules_to_not_convert: list[str] | None = None  # they are stored in 16 bits
    is_marlin_format: bool | None = None
    # How it was made, or is to be run.
    act_group_aware: bool | None = None
    backend: Any = None
    batch_size: Any = None
    block_name_to_quantize: Any = None
    cache_block_outputs: Any = None
    damp_auto_increment: Any = None
    damp_percent: Any = None
    dataset: Any = None
    disable_exllama: Any = None
    exllama_config: Any = None
    max_input_length: Any = None
    meta: Any = None
    method: str = ""
    model_file_base_name: Any = None
    model_name_or_path: Any = None
    model_seqlen: Any = None
    module_name_preceding_first_block: Any = None
    modules_in_block_to_quantize: Any = None
    mse: Any = None
    pack_dtype: str | None = None
    pad_token_id: Any = None
    static_groups: Any = None
    tokenizer: Any = None
    true_sequential: Any = None
    use_cuda_fp16: Any = None
    use_exllama: Any = None


def read_gptq(section: Section) -> Quantization:
    """Raises ConfigError."""
    gptq = section.decode(_Gptq)
    stored = (gptq.checkpoint_format or gptq.format or "gptq").lower()
    if stored not in _ZERO_OFFSETS or gptq.is_marlin_format:
        raise section.error(f"checkpoint_format={stored!r} is not supported")
    if gptq.pack_dtype not in (None, "int32"):
        raise section.error(f"pack_dtype={gptq.pack_dtype!r} is not supported")
    left_out, rules = _rules(section, gptq, _ZERO_OFFSETS[stored])
    return Quantization("gptq", rules, left_out)


def _rules(
    section: Section, gptq: _Gptq, zero_offset: int
) -> tuple[tuple[str, ...], tuple[FormatRule, ...]]:
    """The patterns of modules that are in 16 bits, "-:" before them, and how others are stored:
    those with "+:" or nothing before them may have bits and groups of their own.
    """
    left_out, rules = [], []
    for told, changes in (gptq.dynamic or {}).items():
        is_left_out = told.startswith("-:")
        pattern = f"re:{told.removeprefix('-:' if is_left_out else '+:')}"
        check_pattern(section, pattern)
        if is_left_out:
            left_out.append(pattern)
            continue
        own = changes if isinstance(changes, dict) else {}
        if unknown := own.keys() - _OWN:
            raise section.error(f"dynamic: {told!r} has {min(unknown)!r}, which is not supported")
        words = _words(section, gptq, own, zero_offset)
        rules.append(FormatRule(words, (pattern,)))
    whole = FormatRule(_words(section, gptq, {}, zero_offset))
    return tuple(left_out), (*rules, whole)


def _words(section: Section, gptq: _Gptq, own: Mapping[str, Any], zero_offset: int) -> GptqWords:
    num_bits, size = own.get("bits", gptq.bits), own.get("group_size", gptq.group_size)
    return GptqWords(*word_sizes_of(section, num_bits, size, _NUM_BITS), zero_offset)
