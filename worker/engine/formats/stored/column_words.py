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
from worker.engine.formats.block_codes import BitPlane, BlockCodes, BlockFormat, nibble_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import unpack_words
from worker.engine.formats.weight_parts import WeightParts

# A word has a value of each of eight rows, in places of their own.
AWQ_WORDS = BlockFormat(1, 4, (BitPlane(0, 4, 4, 1),), places=(0, 4, 1, 5, 2, 6, 3, 7))


def load_gptq(words: GptqWords, parts: WeightParts) -> ScaledWeight:
    """Loads heads that were checked. Raises ConfigError."""
    stored = parts.get(WEIGHT).T
    codes = nibble_codes(stored) if words.num_bits == 4 else unpack_words(stored, words.num_bits)
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
    """Loads heads that were checked. Raises ConfigError."""
    columns = parts.get(WEIGHT).T
    return ScaledWeight(
        BlockCodes.of(AWQ_WORDS, columns),
        parts.scales(SCALES).T,
        1,
        words.group_size or columns.shape[1],
        AWQ_WORDS.unpack(parts.get(ZEROS).T).to(torch.float32),
    )
