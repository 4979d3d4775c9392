"""The blocks of GGUF as codes and scales, bit for bit what gguf-py makes numbers of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from worker.engine.formats.block_codes import BitPlane, BlockCodes, BlockFormat, unpack_bits
from worker.engine.formats.scaled_weight import GroupSteps, ScaledWeight
from worker.engine.formats.stored.bit_packing import E2M1_BOOK, powers_of_two

# Of IQ4_NL and IQ4_XS.
_IQ4_BOOK = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)

Blocks = torch.Tensor  # [num_blocks, block_bytes] uint8


class Scales(NamedTuple):
    """The scales of blocks, as `ScaledWeight` has them: [num_blocks, those of a block]."""

    scales: torch.Tensor
    minima: torch.Tensor | None = None
    steps: GroupSteps | None = None


class BlockType(NamedTuple):
    """How a type's blocks are read, and how many bits of a value there are in codes, scales and
    minima included.
    """

    codes: BlockFormat
    read_scales: Callable[[Blocks], Scales]
    code_bits: float
    book: tuple[float, ...] | None = None


def weight_of_blocks(kind: str, rows: torch.Tensor) -> ScaledWeight:
    """Reads [num_rows, row_bytes] as they lie in a file; `kind` is one of BLOCK_TYPES. Codes stay
    where they are.
    """
    block_type = BLOCK_TYPES[kind]
    scales, minima, steps = block_type.read_scales(rows.view(-1, block_type.codes.num_bytes))

    def by_row(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(len(rows), -1)

    return ScaledWeight(
        BlockCodes.of(block_type.codes, rows),
        by_row(scales),
        1,
        block_type.codes.num_values // (scales if steps is None else steps.scales).shape[1],
        minima=None if minima is None else by_row(minima),
        steps=None if steps is None else steps.each(by_row),
        book=None if block_type.book is None else torch.tensor(block_type.book),
    )


def _half_scale(blocks: Blocks) -> Scales:
    return Scales(_half(blocks, 0))


def _half_minimum(blocks: Blocks) -> Scales:
    return Scales(_half(blocks, 0), -_half(blocks, 2))


# Of 256 values; the comments say which bytes of a block are what.
def _q2_k(blocks: Blocks) -> Scales:
    # [0, 16) steps of scales and minima; [16, 80) codes; [80, 82) the scale; [82, 84) the minimum.
    steps = blocks[:, :16]
    return Scales(_half(blocks, 80), _half(blocks, 82), GroupSteps(steps & 15, steps >> 4))


def _q3_k(blocks: Blocks) -> Scales:
    # [0, 32) the codes' high bits; [32, 96) their low ones; [96, 108) steps; [108, 110) the scale.
    low, high = unpack_bits(blocks[:, 96:104], 4, 8), unpack_bits(blocks[:, 104:108], 2, 4)
    steps = (low | (high << 4)).to(torch.int8) - 32
    return Scales(_half(blocks, 108), steps=GroupSteps(steps))


def _k_with_minima(blocks: Blocks) -> Scales:
    """Eight groups of 32, whose scales and minima have six bits each, in twelve bytes."""
    # [0, 2) the scale; [2, 4) the minimum; [4, 16) the steps of both; behind them codes.
    first, second, rest = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = torch.cat([first & 63, (rest & 15) | (first >> 2 & 48)], dim=1)
    minima = torch.cat([second & 63, (rest >> 4) | (second >> 2 & 48)], dim=1)
    return Scales(_half(blocks, 0), _half(blocks, 2), GroupSteps(scales, minima))


def _q6_k(blocks: Blocks) -> Scales:
    # [0, 128) the codes' low bits; [128, 192) their high ones; [192, 208) steps; [208, 210) scale.
    steps = GroupSteps(blocks[:, 192:208].view(torch.int8))
    return Scales(_half(blocks, 208), steps=steps)


def _iq4_xs(blocks: Blocks) -> Scales:
    # [0, 2) the scale; [2, 4) the steps' high bits; [4, 8) their low ones; [8, 136) codes.
    low, high = unpack_bits(blocks[:, 4:8], 4, 1), unpack_bits(blocks[:, 2:4], 2, 1)
    steps = (low | (high << 4)).to(torch.int8) - 32
    return Scales(_half(blocks, 0), steps=GroupSteps(steps))


def _mxfp4(blocks: Blocks) -> Scales:
    return Scales(powers_of_two(blocks[:, :1]))


def _nibbles(start: int, num_bytes: int, width: int) -> BitPlane:
    return BitPlane(start, num_bytes, 4, width)


# Those whose values are codes with scales, by GGUF's names.
BLOCK_TYPES: Mapping[str, BlockType] = {
    # Of 32 values: a scale in 16 bits, where there is one a minimum, the fifth bits, the others.
    "Q4_0": BlockType(BlockFormat(32, 18, (_nibbles(2, 16, 16),), 8), _half_scale, 5.0),
    "Q4_1": BlockType(BlockFormat(32, 20, (_nibbles(4, 16, 16),)), _half_minimum, 6.0),
    "Q5_0": BlockType(
        BlockFormat(32, 22, (_nibbles(6, 16, 16), BitPlane(2, 4, 1, 1, 4)), 16), _half_scale, 7.0
    ),
    "Q5_1": BlockType(
        BlockFormat(32, 24, (_nibbles(8, 16, 16), BitPlane(4, 4, 1, 1, 4))), _half_minimum, 8.0
    ),
    "Q8_0": BlockType(
        BlockFormat(32, 34, (BitPlane(2, 32, 8, 32),), 128, flipped=128), _half_scale, 9.0
    ),
    "Q2_K": BlockType(BlockFormat(256, 84, (BitPlane(16, 64, 2, 32),)), _q2_k, 5.25),
    "Q3_K": BlockType(
        BlockFormat(256, 110, (BitPlane(32, 64, 2, 32), BitPlane(0, 32, 1, 32, 2)), 4),
        _q3_k,
        4.625,
    ),
    "Q4_K": BlockType(BlockFormat(256, 144, (_nibbles(16, 128, 32),)), _k_with_minima, 4.75),
    "Q5_K": BlockType(
        BlockFormat(256, 176, (_nibbles(48, 128, 32), BitPlane(16, 32, 1, 32, 4))),
        _k_with_minima,
        6.75,
    ),
    "Q6_K": BlockType(
        BlockFormat(256, 210, (_nibbles(0, 128, 64), BitPlane(128, 64, 2, 32, 4)), 32),
        _q6_k,
        6.625,
    ),
    "IQ4_NL": BlockType(BlockFormat(32, 18, (_nibbles(2, 16, 16),)), _half_scale, 5.0, _IQ4_BOOK),
    "IQ4_XS": BlockType(BlockFormat(256, 136, (_nibbles(8, 128, 16),)), _iq4_xs, 4.375, _IQ4_BOOK),
    "MXFP4": BlockType(BlockFormat(32, 17, (_nibbles(1, 16, 16),)), _mxfp4, 5.0, E2M1_BOOK),
}


def _half(blocks: Blocks, start: int) -> torch.Tensor:
    """[num_blocks, 1] float32: a number in 16 bits that each block has."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()
