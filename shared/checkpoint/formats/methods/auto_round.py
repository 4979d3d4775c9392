"""AutoRound, where it packs words as GPTQ's or AWQ's tools do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.column_words import AwqWords, GptqWords
from shared.checkpoint.formats.linear_format import LinearFormat
from shared.checkpoint.formats.methods.group_size import word_sizes_of
from shared.checkpoint.formats.quantization import FormatRule, Quantization, check_pattern
from shared.checkpoint.formats.section import Section

_NUM_BITS: Mapping[str, tuple[int, ...]] = {"gptq": (2, 4, 8), "awq": (4,)}
_ZERO_OFFSET = 1  # as GPTQ's first version, it writes one less
_PACKINGS = {
    **dict.fromkeys(("auto_round:auto_gptq", "auto_round:gptq"), "gptq"),
    **dict.fromkeys(("auto_round:auto_awq", "auto_round:awq"), "awq"),
}
_DENSE_BITS = 16
_OWN = {"bits", "group_size", "sym", "data_type"}  # what a module may have


class _AutoRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bits: int
    group_size: int
    quant_method: str = "auto-round"
    packing_format: str = ""
    data_type: str = "int"
    act_bits: int | None = None
    sym: bool | None = None  # zero points are stored in any case
    extra_config: dict[str, dict[str, Any]] | None = None  # by module, or by a pattern of names
    # How it was made, or is to be run.
    act_data_type: Any = None
    act_dynamic: Any = None
    act_group_size: Any = None
    act_sym: Any = None
    amp: Any = None
    autoround_version: Any = None
    backend: Any = None
    batch_size: Any = None
    block_name_to_quantize: Any = None
    dataset: Any = None
    enable_alg_ext: Any = None
    enable_minmax_tuning: Any = None
    enable_norm_bias_tuning: Any = None
    enable_quanted_input: Any = None
    gradient_accumulate_steps: Any = None
    iters: Any = None
    low_gpu_mem_usage: Any = None
    lr: Any = None
    minmax_lr: Any = None
    model_free: Any = None
    nsamples: Any = None
    quant_block_list: Any = None
    quant_nontext_module: Any = None
    scale_dtype: Any = None
    seqlen: Any = None
    super_bits: None = None
    super_group_size: None = None
    to_quant_block_names: Any = None


def read_auto_round(section: Section) -> Quantization:
    """Raises ConfigError."""
    auto_round = section.decode(_AutoRound)
    packing = _PACKINGS.get(auto_round.packing_format)
    if packing is None:
        raise section.error(
            f"packing_format={auto_round.packing_format!r} is not supported, only "
            f"{', '.join(_PACKINGS)} are"
        )
    if (auto_round.act_bits or _DENSE_BITS) < _DENSE_BITS:
        raise section.error(f"act_bits={auto_round.act_bits} is not supported")
    whole = {
        "bits": auto_round.bits,
        "group_size": auto_round.group_size,
        "data_type": auto_round.data_type,
    }
    left_out, rules = [], []
    for told, own in (auto_round.extra_config or {}).items():
        if unknown := own.keys() - _OWN:
            raise section.error(f"extra_config: {told!r} has {min(unknown)!r}")
        target = told if told.replace(".", "").replace("_", "").isalnum() else f"re:{told}"
        check_pattern(section, target)
        if own.get("bits", 0) == _DENSE_BITS:
            left_out.append(target)
        else:
            rules.append(FormatRule(_words(section, packing, whole | own), (target,)))
    rules.append(FormatRule(_words(section, packing, whole)))
    return Quantization("auto-round", tuple(rules), tuple(left_out))


def _words(section: Section, packing: str, values: Mapping[str, Any]) -> LinearFormat:
    num_bits, group_size = word_sizes_of(
        section, values["bits"], values["group_size"], _NUM_BITS[packing]
    )
    if (data_type := values["data_type"]) != "int":
        raise section.error(f"data_type={data_type!r} is not supported, only 'int' is")
    if packing == "awq":
        return AwqWords(group_size)
    return GptqWords(num_bits, group_size, _ZERO_OFFSET)
