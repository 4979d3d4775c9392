"""Codes as they lie in a file, for who puts their bits together while it packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch

_CHUNK_BYTES = 1 << 19  # unpacked at once: what lies in a processor's own cache, with all between
_WORD_BYTES, _WORD_NIBBLES = 4, 8


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
    places: tuple[int, ...] = (0,)  # where in a block the codes are of each row that shares it
    high_first: bool = False  # of four bits side by side

    @property
    def num_bits(self) -> int:
        return sum(plane.num_bits for plane in self.planes)

    def unpack(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, row_bytes] -> [num_rows, columns] uint8."""
        blocks = rows.contiguous().view(torch.uint8).view(-1, self.num_bytes)
        num_codes = self.num_values * len(self.places)
        codes = torch.zeros(len(blocks), num_codes, dtype=torch.uint8)
        for start, num_bytes, num_bits, width, shift in self.planes:
            plane = blocks[:, start : start + num_bytes]
            bits = unpack_bits(plane, num_bits, width, high_first=self.high_first)
            codes.bitwise_or_(bits << shift)
        codes = codes.bitwise_xor_(self.flipped).view(len(rows), -1)
        if len(self.places) == 1:
            return codes
        shared = codes.view(len(rows), -1, num_codes)[..., list(self.places)]
        return shared.transpose(1, 2).reshape(-1, shared.shape[1])


class BlockRows(NamedTuple):
    """Rows of one format."""

    format: BlockFormat
    # [n, row_bytes] uint8, as they lie in a file; or as many words of 32 bits, which may lie apart.
    rows: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of its codes."""
        num_blocks = self.rows.shape[1] * self.rows.itemsize // self.format.num_bytes
        return len(self.rows) * len(self.format.places), num_blocks * self.format.num_values


@dataclass(frozen=True, slots=True, eq=False)
class BlockCodes:
    """Codes [..., rows, columns] that nobody has unpacked yet."""

    parts: tuple[BlockRows, ...]  # one above the other
    order: torch.Tensor | None = None  # int64: of all rows of the parts those that it has; or all
    num_matrices: int | None = None  # None: it is one matrix
    columns: torch.Tensor | None = None  # int64: the order that one matrix has them in; or theirs

    @classmethod
    def of(
        cls, block_format: BlockFormat, rows: torch.Tensor, num_matrices: int | None = None
    ) -> Self:
        return cls((BlockRows(block_format, rows),), num_matrices=num_matrices)

    @property
    def shape(self) -> torch.Size:
        num_rows = self._num_rows if self.order is None else len(self.order)
        columns = self.parts[0].shape[1]
        if self.num_matrices is None:
            return torch.Size((num_rows, columns))
        return torch.Size((self.num_matrices, num_rows // self.num_matrices, columns))

    @property
    def zero(self) -> int:
        """The largest code of zero of all rows: others' are lifted to it."""
        return max(part.format.zero for part in self.parts)

    @property
    def num_codes(self) -> int:
        """Above the least number of all rows, itself among them."""
        return max((1 << form.num_bits) + self.zero - form.zero for form, _ in self.parts)

    @property
    def rows(self) -> torch.Tensor:
        """`order`, whatever it is."""
        return torch.arange(self._num_rows) if self.order is None else self.order

    def with_rows(self, rows: torch.Tensor) -> BlockCodes:
        """Those rows of one matrix."""
        return replace(self, order=self.rows[rows])

    def with_columns(self, columns: torch.Tensor) -> BlockCodes:
        """All of one matrix, in this order."""
        assert self.columns is None, "nobody orders twice"
        return replace(self, columns=columns)

    def matrix(self, idx: int) -> BlockCodes:
        """One of all, whose rows and columns nobody has put into another order."""
        if self.num_matrices is None:
            return self
        ((block_format, rows),), num_rows = self.parts, self.shape[-2]
        return BlockCodes.of(block_format, rows[idx * num_rows : (idx + 1) * num_rows])

    def lessened(self, number: int) -> BlockCodes:
        """Each stands for a number that is so much less."""
        parts = (
            part._replace(format=part.format._replace(zero=part.format.zero + number))
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    def unpack(self) -> torch.Tensor:
        """The numbers: uint8 where all are without signs."""
        numbers = [_numbers(*part) for part in self.parts]
        joined = torch.cat(numbers) if len(numbers) > 1 else numbers[0]
        ordered = (joined if self.order is None else joined[self.order]).view(self.shape)
        return ordered if self.columns is None else ordered[:, self.columns]

    @property
    def _num_rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)


def join_blocks(codes: Sequence[BlockCodes]) -> BlockCodes:
    """One weight's, whose rows come one after the other; nobody has ordered their columns."""
    parts = [part for each in codes for part in each.parts]
    orders, start = [], 0
    for each in codes:
        orders.append(each.rows + start)
        start += sum(part.shape[0] for part in each.parts)
    return BlockCodes(tuple(parts), torch.cat(orders))


def nibble_codes(
    packed: torch.Tensor,
    *,
    zero: int = 0,
    num_matrices: int | None = None,
    high_first: bool = False,
) -> BlockCodes:
    """Reads [num_rows, n] int32 or uint8 in whole words, the lowest bits of each byte first."""
    assert packed.shape[1] * packed.itemsize % _WORD_BYTES == 0, "a row is of whole words"
    plane = BitPlane(0, _WORD_BYTES, 4, 1)
    words = BlockFormat(_WORD_NIBBLES, _WORD_BYTES, (plane,), zero, high_first=high_first)
    return BlockCodes.of(words, packed, num_matrices)


def unpack_nibbles(packed: torch.Tensor, *, high_first: bool = False) -> torch.Tensor:
    """[..., n] uint8 -> [..., 2 * n] uint8."""
    wide = packed.contiguous().to(torch.int16)
    if high_first:
        wide = (wide >> 4).bitwise_or_(wide.bitwise_left_shift_(8))
    else:
        wide = (wide << 4).bitwise_or_(wide)
    return wide.bitwise_and_(0x0F0F).view(torch.uint8)


def unpack_bits(
    packed: torch.Tensor, num_bits: int, width: int, *, high_first: bool = False
) -> torch.Tensor:
    """[num_blocks, n] -> [num_blocks, n * 8 / num_bits], see `BitPlane` and `BlockFormat`."""
    if (num_bits, width) == (4, 1):
        return unpack_nibbles(packed, high_first=high_first)
    rows, mask = packed.reshape(len(packed), -1, width), (1 << num_bits) - 1
    if width % 4 == 0:  # four bytes at once: what is shifted into the next one is masked out
        rows, mask = rows.contiguous().view(torch.int32), mask * 0x01010101
        mask -= (mask >> 31) << 32  # 32 bits with a sign
    parts = [(rows >> shift).bitwise_and_(mask) for shift in range(0, 8, num_bits)]
    return torch.stack(parts, dim=2).view(torch.uint8).flatten(1)


def _numbers(block_format: BlockFormat, rows: torch.Tensor) -> torch.Tensor:
    step = max(1, _CHUNK_BYTES // (rows.shape[1] * rows.itemsize))
    codes = torch.cat([block_format.unpack(chunk) for chunk in torch.split(rows, step)])
    return (codes - block_format.zero).view(torch.int8) if block_format.zero else codes
