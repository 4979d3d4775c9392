"""Reads the tensors of bitsandbytes: four bits by a book, and eight bits by row."""

from __future__ import annotations

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
from worker.engine.formats.block_codes import unpack_nibbles
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.weight_parts import WeightParts

_INT8_RANGE = 127.0


def load_four_bits(layout: BitsAndBytes4, parts: WeightParts) -> ScaledWeight:
    """Blocks go over the ends of rows: each value gets the scale of its own."""
    state = layout.state(parts.heads)
    rows, columns = state.shape
    codes = unpack_nibbles(parts.get(WEIGHT).flatten(), high_first=True).view(rows, columns)
    maxima = _maxima(parts, state)
    book = parts.scales(BOOK)
    if columns % state.blocksize == 0:
        return ScaledWeight(codes, maxima.view(rows, -1), 1, state.blocksize, book=book)
    scales = maxima.repeat_interleave(state.blocksize)[: rows * columns].view(rows, columns)
    return ScaledWeight(codes, scales, 1, 1, book=book)


def load_llm_int8(layout: BitsAndBytes8, parts: WeightParts) -> ScaledWeight:
    """Of heads that were checked. Raises ConfigError."""
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
