"""AWQ, as AutoAWQ writes it."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.column_words import AwqWords
from shared.checkpoint.formats.methods.group_size import group_size_of
from shared.checkpoint.formats.quantization import FormatRule, Quantization
from shared.checkpoint.formats.section import Section


class _Awq(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bits: int
    group_size: int
    quant_method: str = "awq"
    zero_point: bool = True
    version: str = "gemm"
    format: str = "gemm"
    modules_to_not_convert: list[str] | None = None  # they are stored in 16 bits
    # How it was made, or is to be run.
    backend: str | None = None
    do_fuse: Any = None
    exllama_config: Any = None
    fuse_max_seq_len: Any = None
    modules_to_fuse: Any = None


def read_awq(section: Section) -> Quantization:
    """Raises ConfigError."""
    awq = section.decode(_Awq)
    if awq.bits != 4:
        raise section.error(f"bits={awq.bits} is not supported, only 4 are")
    for version in (awq.version.lower(), awq.format.lower()):
        if version != "gemm":
            raise section.error(f"version={version!r} is not supported, only 'gemm' is")
    if not awq.zero_point:
        raise section.error("zero_point=false is not supported")
    return Quantization("awq", (FormatRule(AwqWords(group_size_of(section, awq.group_size))),))
