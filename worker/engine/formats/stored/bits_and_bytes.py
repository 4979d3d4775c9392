"""Reads the tensors of bitsandbytes: four bits by a book, and eight bits by row."""

from __future__ import annotations

import math

import torch

from shared.checkpoint.formats.layouts.bits_and_bytes import (
    BOOK,
    MAXIMA,
    NESTED_BOOK,
    NESTED_MAXIMA,
    ROW_MAXIMA,
    WEIGHT,
    BitsAndBytes4,
    BitsAndBytes8,
    QuantState,
)
from worker.engine.formats.block_codes import BlockCodes, nibble_codes, unpack_nibbles
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.weight_parts import WeightParts

_INT8_RANGE = 127.0
_WORD_CODES = 8


def load_four_bits(layout: BitsAndBytes4, parts: WeightParts) -> ScaledWeight:
    """Blocks go over the ends of rows: they are taken apart where a row ends within one."""
    state = layout.state(parts.heads)
    rows, columns = state.shape
    size = math.gcd(columns, state.blocksize)
    maxima = _maxima(parts, state).repeat_interleave(state.blocksize // size)
    scales = maxima[: rows * columns // size].view(rows, -1)
    book = parts.scales(BOOK)
    return ScaledWeight(_codes(parts.get(WEIGHT), rows, columns), scales, 1, size, book=book)


def _codes(packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor | BlockCodes:
    if columns % _WORD_CODES == 0:
        return nibble_codes(packed.view(rows, -1), high_first=True)
    return unpack_nibbles(packed.flatten(), high_first=True).view(rows, columns)


def load_llm_int8(layout: BitsAndBytes8, parts: WeightParts) -> ScaledWeight:
    """Reads a weight whose heads were checked. Raises ConfigError."""
    codes = parts.get(layout.marker)
    scales = parts.scales(ROW_MAXIMA)[:, None] / _INT8_RANGE
    return ScaledWeight(codes, scales, 1, codes.shape[1])


def _maxima(parts: WeightParts, state: QuantState) -> torch.Tensor:
    if state.nested_blocksize == 0:
        return parts.scales(MAXIMA)
    codes = parts.get(MAXIMA)
    maxima = parts.scales(NESTED_MAXIMA).repeat_interleave(state.nested_blocksize)
    values = parts.scales(NESTED_BOOK)[codes.to(torch.int32)] * maxima[: len(codes)]
    return parts.numbers(MAXIMA, values + state.nested_offset)
