"""Integers of a few bits in rows of 32-bit words: pack-quantized of compressed-tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.checkpoint.weights.plain_tensors import PLAIN_DTYPES
from worker.engine.formats.linear_format import WeightParts, bits_in_codes, name_of_integers
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import WORD_BITS, unpack_words

_PACKED, _SCALE, _ZERO = "_packed", "_scale", "_zero_point"
_SHAPE, _GROUPS = "_shape", "_g_idx"


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """`LinearFormat`: a row's values beside each other, stored with half their range added."""

    num_bits: int  # 4 or 8
    group_size: int | None  # columns; None: a whole row
    is_symmetric: bool

    marker = _PACKED
    ending = ""
    dtypes = frozenset({"I32"})
    suffixes: Sequence[str] = (_PACKED, _SCALE, _ZERO, _SHAPE, _GROUPS)

    @property
    def name(self) -> str:
        return name_of_integers(self.num_bits, self.group_size)

    @property
    def code_bits(self) -> float:
        return bits_in_codes(self.num_bits, self.group_size, has_zeros=not self.is_symmetric)

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        *rest, rows, num_words = parts.matrix(_PACKED)
        parts.expect(_SHAPE, ("I64", "I32"), (len(rest) + 2,))
        shape = tuple(parts.get(_SHAPE).tolist())
        columns = shape[-1]
        if columns < 1 or shape[:-1] != (*rest, rows) or num_words != self._num_words(columns):
            raise parts.error(
                f"has {parts.stem + _PACKED!r} of shape {(*rest, rows, num_words)}, which does not "
                f"hold {shape}"
            )
        grid = (*rest, rows, -(-columns // (self.group_size or columns)))
        asked_by = f"group_size={self.group_size or -1}"
        parts.expect(_SCALE, tuple(sorted(PLAIN_DTYPES)), grid, asked_by=asked_by)
        if not self.is_symmetric:
            parts.expect(
                _ZERO, ("I32",), (*rest, self._num_words(rows), grid[-1]), asked_by=asked_by
            )
        if parts.has(_GROUPS):
            parts.expect(_GROUPS, ("I32", "I64"), (columns,))
        return shape

    def load(self, parts: WeightParts) -> ScaledWeight:
        *_, rows, columns = parts.get(_SHAPE).tolist()
        scales = parts.scales(_SCALE)
        codes = unpack_words(parts.get(_PACKED), self.num_bits)[..., :columns]
        zeros = None
        if not self.is_symmetric:
            packed = parts.get(_ZERO).transpose(-1, -2)
            zeros = unpack_words(packed, self.num_bits)[..., :rows].transpose(-1, -2)
        half = 1 << (self.num_bits - 1)
        return ScaledWeight(
            (codes.to(torch.int16) - half).to(torch.int8),
            scales,
            1,
            self.group_size or columns,
            None if zeros is None else zeros.to(torch.float32) - half,
            groups=parts.groups(_GROUPS, scales.shape[-1], self.group_size),
        )

    def _num_words(self, num_values: int) -> int:
        return -(-num_values * self.num_bits // WORD_BITS)
