"""Reads integers of a few bits in rows of 32-bit words: pack-quantized of compressed-tensors."""

from __future__ import annotations

import torch

from shared.checkpoint.formats.layouts.packed_integers import (
    GROUPS,
    PACKED,
    SCALE,
    SHAPE,
    ZERO,
    PackedIntegers,
)
from worker.engine.formats.block_codes import BlockCodes, nibble_codes
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight
from worker.engine.formats.stored.bit_packing import unpack_words
from worker.engine.formats.weight_parts import WeightParts


def load_packed_integers(layout: PackedIntegers, parts: WeightParts) -> ScaledWeight:
    """Loads heads that were checked. Raises ConfigError."""
    *_, rows, columns = parts.heads.integers(SHAPE)
    scales = parts.scales(SCALE)
    half = 1 << (layout.num_bits - 1)
    zeros = None
    if not layout.is_symmetric:
        packed = parts.get(ZERO).transpose(-1, -2)
        zeros = unpack_words(packed, layout.num_bits)[..., :rows].transpose(-1, -2)
    return ScaledWeight(
        _codes(layout, parts.get(PACKED), columns),
        scales,
        1,
        layout.group_size or columns,
        None if zeros is None else zeros.to(torch.float32) - half,
        groups=parts.groups(GROUPS, scales.shape[-1], layout.group_size),
        inputs=None if layout.inputs is None else InputCodes(layout.inputs.size),
    )


def _codes(layout: PackedIntegers, words: torch.Tensor, columns: int) -> torch.Tensor | BlockCodes:
    half = 1 << (layout.num_bits - 1)
    if layout.num_bits == 4 and words.ndim == 2 and columns == words.shape[1] * 8:
        return nibble_codes(words, zero=half)
    unpacked = unpack_words(words, layout.num_bits)[..., :columns]
    return (unpacked - half).view(torch.int8)  # eight bits wrap, as what is below half does
