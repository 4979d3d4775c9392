"""Codes as they lie in the blocks of a file, for who puts their bits together while it packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch

_CHUNK_BYTES = 1 << 19  # unpacked at once: what lies in a processor's own cache, with all between


class BitPlane(NamedTuple):
    """Some of the bits of all codes of a block, in `num_bytes` from byte `start` on.

    Of each `width` bytes there come first the lowest `num_bits` of all, then the next ones of all.
    """

    start: int
    num_bytes: int
    num_bits: int
    width: int
    shift: int = 0  # where they stand in a code


class BlockFormat(NamedTuple):
    """How the codes of a row are read, block by block."""

    num_values: int  # of a block
    num_bytes: int  # of it
    planes: tuple[BitPlane, ...]
    zero: int = 0  # the code of the number zero: codes are numbers without signs
    flipped: int = 0  # bits of what is stored, where it has signs

    @property
    def num_bits(self) -> int:
        return sum(plane.num_bits for plane in self.planes)

    def unpack(self, rows: torch.Tensor) -> torch.Tensor:
        """[num_rows, row_bytes] -> [num_rows, columns] uint8."""
        blocks = rows.reshape(-1, self.num_bytes)
        codes = torch.zeros(len(blocks), self.num_values, dtype=torch.uint8)
        for start, num_bytes, num_bits, width, shift in self.planes:
            plane = blocks[:, start : start + num_bytes]
            codes.bitwise_or_(unpack_bits(plane, num_bits, width) << shift)
        return codes.bitwise_xor_(self.flipped).view(len(rows), -1)


class BlockRows(NamedTuple):
    """Rows of one format."""

    format: BlockFormat
    rows: torch.Tensor  # [num_rows, row_bytes] uint8, as they lie in a file


@dataclass(frozen=True, slots=True, eq=False)
class BlockCodes:
    """Codes [rows, columns] that nobody has unpacked yet."""

    parts: tuple[BlockRows, ...]  # one above the other
    order: torch.Tensor  # [rows] int64: of all rows of the parts those that it has

    @classmethod
    def of(cls, block_format: BlockFormat, rows: torch.Tensor) -> Self:
        return cls((BlockRows(block_format, rows),), torch.arange(len(rows)))

    @property
    def shape(self) -> torch.Size:
        (block_format, rows), *_ = self.parts
        num_blocks = rows.shape[1] // block_format.num_bytes
        return torch.Size((len(self.order), num_blocks * block_format.num_values))

    @property
    def zero(self) -> int:
        """The largest code of zero of all rows: others' are lifted to it."""
        return max(part.format.zero for part in self.parts)

    @property
    def num_codes(self) -> int:
        """Above the least number of all rows, itself among them."""
        return max((1 << form.num_bits) + self.zero - form.zero for form, _ in self.parts)

    def with_rows(self, rows: torch.Tensor) -> BlockCodes:
        return replace(self, order=self.order[rows])

    def unpack(self) -> torch.Tensor:
        """The numbers: uint8 where all are without signs."""
        return torch.cat([_numbers(*part) for part in self.parts])[self.order]


def join_blocks(codes: Sequence[BlockCodes]) -> BlockCodes:
    """One weight's, whose rows come one after the other."""
    parts = [part for each in codes for part in each.parts]
    orders, start = [], 0
    for each in codes:
        orders.append(each.order + start)
        start += sum(len(part.rows) for part in each.parts)
    return BlockCodes(tuple(parts), torch.cat(orders))


def unpack_bits(packed: torch.Tensor, num_bits: int, width: int) -> torch.Tensor:
    """[num_blocks, n] -> [num_blocks, n * 8 / num_bits], see `BitPlane`."""
    rows, mask = packed.reshape(len(packed), -1, width), (1 << num_bits) - 1
    if width % 4 == 0:  # four bytes at once: what is shifted into the next one is masked out
        rows, mask = rows.contiguous().view(torch.int32), mask * 0x01010101
        mask -= (mask >> 31) << 32  # 32 bits with a sign
    parts = [(rows >> shift).bitwise_and_(mask) for shift in range(0, 8, num_bits)]
    return torch.stack(parts, dim=2).view(torch.uint8).flatten(1)


def _numbers(block_format: BlockFormat, rows: torch.Tensor) -> torch.Tensor:
    step = max(1, _CHUNK_BYTES // rows.shape[1])
    codes = torch.cat([block_format.unpack(chunk) for chunk in torch.split(rows, step)])
    return (codes - block_format.zero).view(torch.int8) if block_format.zero else codes
