"""Integers of a few bits in rows of 32-bit words: pack-quantized of compressed-tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.checkpoint.formats.linear_format import InputRounding, bits_in_codes, name_of_integers
from shared.checkpoint.formats.tensor_heads import WeightHeads
from shared.checkpoint.weights.plain_tensors import PLAIN_DTYPES

PACKED, SCALE, ZERO, SHAPE, GROUPS = "_packed", "_scale", "_zero_point", "_shape", "_g_idx"
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """`LinearFormat`: a row's values beside each other, stored with half their range added."""

    num_bits: int  # 4 or 8
    group_size: int | None  # columns; None: a whole row
    is_symmetric: bool
    inputs: InputRounding | None = None  # None: they are in 16 bits

    marker = PACKED
    ending = ""
    dtypes = frozenset({"I32"})
    suffixes: Sequence[str] = (PACKED, SCALE, ZERO, SHAPE, GROUPS)

    @property
    def name(self) -> str:
        return name_of_integers(self.num_bits, self.group_size)

    @property
    def code_bits(self) -> float:
        return bits_in_codes(self.num_bits, self.group_size, has_zeros=not self.is_symmetric)

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        *rest, rows, num_words = heads.matrix(PACKED)
        heads.expect(SHAPE, ("I64", "I32"), (len(rest) + 2,))
        shape = heads.integers(SHAPE)
        columns = shape[-1]
        if columns < 1 or shape[:-1] != (*rest, rows) or num_words != self._num_words(columns):
            raise heads.error(
                f"has {heads.stem + PACKED!r} of shape {(*rest, rows, num_words)}, which does not "
                f"hold {shape}"
            )
        grid = (*rest, rows, -(-columns // (self.group_size or columns)))
        asked_by = f"group_size={self.group_size or -1}"
        heads.expect(SCALE, tuple(sorted(PLAIN_DTYPES)), grid, asked_by=asked_by)
        if not self.is_symmetric:
            heads.expect(
                ZERO, ("I32",), (*rest, self._num_words(rows), grid[-1]), asked_by=asked_by
            )
        if heads.has(GROUPS):
            heads.expect(GROUPS, ("I32", "I64"), (columns,))
        return shape

    def _num_words(self, num_values: int) -> int:
        return -(-num_values * self.num_bits // _WORD_BITS)
