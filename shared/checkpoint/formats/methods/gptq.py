"""GPTQ, as AutoGPTQ, GPTQModel and optimum write it."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.column_words import GptqWords
from shared.checkpoint.formats.methods.group_size import group_size_of
from shared.checkpoint.formats.quantization import FormatRule, Quantization
from shared.checkpoint.formats.section import Section

# What is to be added to a stored zero point: the first version wrote one less.
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_NUM_BITS = (2, 4, 8)


class _Gptq(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bits: int
    group_size: int
    quant_method: str = "gptq"
    checkpoint_format: str = ""
    format: str = ""
    desc_act: bool | None = None  # its order of columns is in g_idx
    sym: bool | None = None  # zero points are stored in any case
    lm_head: bool | None = None
    dynamic: dict[str, Any] | None = None
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
    if gptq.bits not in _NUM_BITS:
        raise section.error(f"bits={gptq.bits} is not supported, only {_NUM_BITS} are")
    stored = (gptq.checkpoint_format or gptq.format or "gptq").lower()
    if stored not in _ZERO_OFFSETS or gptq.is_marlin_format:
        raise section.error(f"checkpoint_format={stored!r} is not supported")
    if gptq.dynamic:
        raise section.error("'dynamic', other bits for some modules, is not supported")
    if gptq.pack_dtype not in (None, "int32"):
        raise section.error(f"pack_dtype={gptq.pack_dtype!r} is not supported")
    group_size = group_size_of(section, gptq.group_size)
    words = GptqWords(gptq.bits, group_size, _ZERO_OFFSETS[stored])
    return Quantization("gptq", (FormatRule(words),))
