"""Reads integers of a few bits in 32-bit words, transposed: the tensors of GPTQ and AWQ."""

from __future__ import annotations

import torch

from shared.checkpoint.formats.layouts.column_words import (
    GROUPS,
    SCALES,
    WEIGHT,
    ZEROS,
    AwqWords,
    GptqWords,
)
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import unpack_words
from worker.engine.formats.weight_parts import WeightParts

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of eight values in a word of AWQ's, in their order


def load_gptq(words: GptqWords, parts: WeightParts) -> ScaledWeight:
    """Of heads that were checked. Raises ConfigError."""
    codes = unpack_words(parts.get(WEIGHT).T, words.num_bits)
    zeros = unpack_words(parts.get(ZEROS), words.num_bits).T.to(torch.int32)
    zeros = (zeros + words.zero_offset) & ((1 << words.num_bits) - 1)
    scales = parts.scales(SCALES).T
    return ScaledWeight(
        codes,
        scales,
        1,
        words.group_size or codes.shape[1],
        zeros.to(torch.float32),
        groups=parts.groups(GROUPS, scales.shape[1], words.group_size),
    )


def load_awq(words: AwqWords, parts: WeightParts) -> ScaledWeight:
    """Of heads that were checked. Raises ConfigError."""
    codes = _unpack_awq(parts.get(WEIGHT))
    return ScaledWeight(
        codes,
        parts.scales(SCALES).T,
        1,
        words.group_size or codes.shape[1],
        _unpack_awq(parts.get(ZEROS)).to(torch.float32),
    )


def _unpack_awq(words: torch.Tensor) -> torch.Tensor:
    values = unpack_words(words, 4).view(len(words), -1, len(_AWQ_PLACES))
    return values[..., list(_AWQ_PLACES)].flatten(1).T.contiguous()
