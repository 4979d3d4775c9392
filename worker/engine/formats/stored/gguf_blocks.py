"""The blocks of GGUF as codes and scales, bit for bit what gguf-py makes numbers of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from worker.engine.formats.scaled_weight import GroupSteps, ScaledWeight
from worker.engine.formats.stored.bit_packing import E2M1_BOOK, powers_of_two

# Of IQ4_NL and IQ4_XS.
_IQ4_BOOK = (
    *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
    *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
)

Blocks = torch.Tensor  # [num_blocks, block_bytes] uint8


class BlockType(NamedTuple):
    """How a type's blocks are read, and how many bits of a value there are in codes, scales and
    minima included.
    """

    read: Callable[[Blocks], ScaledWeight]
    code_bits: float


def codes_of_blocks(kind: str, blocks: Blocks, num_rows: int) -> ScaledWeight:
    """The weight of a matrix's blocks, row by row; `kind` is one of BLOCK_TYPES."""
    flat = BLOCK_TYPES[kind].read(blocks)

    def by_row(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(num_rows, -1)

    return replace(
        flat,
        codes=by_row(flat.codes),
        scales=by_row(flat.scales),
        minima=None if flat.minima is None else by_row(flat.minima),
        steps=None if flat.steps is None else flat.steps.each(by_row),
    )


# Of 32 values: a scale in 16 bits, where there is one a minimum, the fifth bits, the others.
def _q4_0(blocks: Blocks) -> ScaledWeight:
    codes = _parts(blocks[:, 2:], 4, 16).to(torch.int8) - 8
    return ScaledWeight(codes, _half(blocks, 0), 1, 32)


def _q4_1(blocks: Blocks) -> ScaledWeight:
    codes = _parts(blocks[:, 4:], 4, 16)
    return ScaledWeight(codes, _half(blocks, 0), 1, 32, minima=-_half(blocks, 2))


def _q5_0(blocks: Blocks) -> ScaledWeight:
    codes = _parts(blocks[:, 6:], 4, 16) | (_parts(blocks[:, 2:6], 1, 1) << 4)
    return ScaledWeight(codes.to(torch.int8) - 16, _half(blocks, 0), 1, 32)


def _q5_1(blocks: Blocks) -> ScaledWeight:
    codes = _parts(blocks[:, 8:], 4, 16) | (_parts(blocks[:, 4:8], 1, 1) << 4)
    return ScaledWeight(codes, _half(blocks, 0), 1, 32, minima=-_half(blocks, 2))


def _q8_0(blocks: Blocks) -> ScaledWeight:
    return ScaledWeight(blocks[:, 2:].view(torch.int8), _half(blocks, 0), 1, 32)


# Of 256 values; the comments say which bytes of a block are what.
def _q2_k(blocks: Blocks) -> ScaledWeight:
    # [0, 16) steps of scales and minima; [16, 80) codes; [80, 82) the scale; [82, 84) the minimum.
    steps = blocks[:, :16]
    whole = GroupSteps(_half(blocks, 80), steps & 15, _half(blocks, 82), steps >> 4)
    return _with_steps(_parts(blocks[:, 16:80], 2, 32), whole)


def _q3_k(blocks: Blocks) -> ScaledWeight:
    # [0, 32) the codes' high bits; [32, 96) their low ones; [96, 108) steps; [108, 110) the scale.
    low, is_small = _parts(blocks[:, 32:96], 2, 32), _parts(blocks[:, :32], 1, 32) ^ 1
    steps = _parts(blocks[:, 96:104], 4, 8) | (_parts(blocks[:, 104:108], 2, 4) << 4)
    codes = low.to(torch.int8) - (is_small << 2).to(torch.int8)
    return _with_steps(codes, GroupSteps(_half(blocks, 108), steps.to(torch.int8) - 32))


def _q4_k(blocks: Blocks) -> ScaledWeight:
    # [0, 16) scale, minimum and steps; [16, 144) codes.
    return _with_minima(_parts(blocks[:, 16:], 4, 32), blocks)


def _q5_k(blocks: Blocks) -> ScaledWeight:
    # [0, 16) scale, minimum and steps; [16, 48) the codes' high bits; [48, 176) their low ones.
    codes = _parts(blocks[:, 48:], 4, 32) | (_parts(blocks[:, 16:48], 1, 32) << 4)
    return _with_minima(codes, blocks)


def _q6_k(blocks: Blocks) -> ScaledWeight:
    # [0, 128) the codes' low bits; [128, 192) their high ones; [192, 208) steps; [208, 210) scale.
    codes = _parts(blocks[:, :128], 4, 64) | (_parts(blocks[:, 128:192], 2, 32) << 4)
    steps = GroupSteps(_half(blocks, 208), blocks[:, 192:208].view(torch.int8))
    return _with_steps(codes.to(torch.int8) - 32, steps)


def _iq4_nl(blocks: Blocks) -> ScaledWeight:
    codes = _parts(blocks[:, 2:], 4, 16)
    return ScaledWeight(codes, _half(blocks, 0), 1, 32, book=torch.tensor(_IQ4_BOOK))


def _iq4_xs(blocks: Blocks) -> ScaledWeight:
    # [0, 2) the scale; [2, 4) the steps' high bits; [4, 8) their low ones; [8, 136) codes.
    steps = _parts(blocks[:, 4:8], 4, 1) | (_parts(blocks[:, 2:4], 2, 1) << 4)
    whole = GroupSteps(_half(blocks, 0), steps.to(torch.int8) - 32)
    codes = _parts(blocks[:, 8:], 4, 16)
    return replace(_with_steps(codes, whole), book=torch.tensor(_IQ4_BOOK))


def _mxfp4(blocks: Blocks) -> ScaledWeight:
    codes, scales = _parts(blocks[:, 1:], 4, 16), powers_of_two(blocks[:, :1])
    return ScaledWeight(codes, scales, 1, 32, book=torch.tensor(E2M1_BOOK))


# Those whose values are codes with scales, by GGUF's names.
BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(_q4_0, 5.0),
    "Q4_1": BlockType(_q4_1, 6.0),
    "Q5_0": BlockType(_q5_0, 9.0),
    "Q5_1": BlockType(_q5_1, 10.0),
    "Q8_0": BlockType(_q8_0, 9.0),
    "Q2_K": BlockType(_q2_k, 5.25),
    "Q3_K": BlockType(_q3_k, 4.625),
    "Q4_K": BlockType(_q4_k, 4.75),
    "Q5_K": BlockType(_q5_k, 8.75),
    "Q6_K": BlockType(_q6_k, 8.625),
    "IQ4_NL": BlockType(_iq4_nl, 5.0),
    "IQ4_XS": BlockType(_iq4_xs, 4.375),
    "MXFP4": BlockType(_mxfp4, 5.0),
}


def _with_minima(codes: torch.Tensor, blocks: Blocks) -> ScaledWeight:
    """Eight groups of 32, whose scales and minima have six bits each, in twelve bytes."""
    # [0, 2) the scale; [2, 4) the minimum; [4, 16) the steps of both.
    first, second, rest = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = torch.cat([first & 63, (rest & 15) | (first >> 2 & 48)], dim=1)
    minima = torch.cat([second & 63, (rest >> 4) | (second >> 2 & 48)], dim=1)
    return _with_steps(codes, GroupSteps(_half(blocks, 0), scales, _half(blocks, 2), minima))


def _with_steps(codes: torch.Tensor, steps: GroupSteps) -> ScaledWeight:
    """A weight of blocks of 256 values, each with a scale, and a step of each of its groups."""
    minima = None
    if steps.minima is not None and steps.minimum_steps is not None:
        minima = steps.minima * steps.minimum_steps
    return ScaledWeight(
        codes,
        steps.scales * steps.scale_steps,
        1,
        codes.shape[1] // steps.scale_steps.shape[1],
        minima=minima,
        steps=steps,
    )


def _half(blocks: Blocks, start: int) -> torch.Tensor:
    """[num_blocks, 1] float32: a number in 16 bits that each block has."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _parts(packed: torch.Tensor, num_bits: int, width: int) -> torch.Tensor:
    """[num_blocks, n] -> [num_blocks, n * 8 / num_bits]: of each `width` bytes first the lowest
    bits of all, then the next ones of all.
    """
    rows, mask = packed.reshape(len(packed), -1, width), (1 << num_bits) - 1
    if width % 4 == 0:  # four bytes at once: what is shifted into the next one is masked out
        rows, mask = rows.contiguous().view(torch.int32), mask * 0x01010101
    parts = [(rows >> shift).bitwise_and_(mask) for shift in range(0, 8, num_bits)]
    return torch.stack(parts, dim=2).view(torch.uint8).flatten(1)
