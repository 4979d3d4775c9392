"""One byte a value under the weight's own name, with scales of tensors, rows, groups or blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.checkpoint.weights.plain_tensors import PLAIN_DTYPES
from worker.engine.formats.linear_format import WeightParts, bits_in_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import powers_of_two

FP8, INT8 = "F8_E4M3", "I8"
WHOLE = 0  # of a block: as many as there are
_SCALE_DTYPES = (*sorted(PLAIN_DTYPES), "F8_E8M0", "U8")


@dataclass(frozen=True, slots=True)
class EightBits:
    """`LinearFormat` of FP8 (e4m3) and INT8. The size of a block is what the checkpoint says, never
    what the number of scales would allow.
    """

    dtype: str  # FP8 or INT8
    scales: tuple[str, ...]  # suffixes of the scales: one of them is there
    block: tuple[int, int]  # rows and columns that share a scale
    zero: str = ""  # suffix of the zero points; empty: there are none

    marker = ""
    ending = ""

    @property
    def name(self) -> str:
        kind = "fp8" if self.dtype == FP8 else "int8"
        rows, columns = self.block
        if rows != WHOLE and columns != WHOLE and rows > 1:
            return f"{kind} in blocks of {rows} x {columns}"
        if columns != WHOLE:
            return f"{kind} in groups of {columns}"
        return f"{kind} by {'tensor' if rows == WHOLE else 'channel'}"

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset({self.dtype})

    @property
    def suffixes(self) -> Sequence[str]:
        return ("", *self.scales, *((self.zero,) if self.zero else ()))

    @property
    def code_bits(self) -> float:
        return bits_in_codes(8, self.block[1])

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        shape = parts.matrix()
        shapes = self._scale_shapes(shape)
        parts.expect(self._scale(parts), _SCALE_DTYPES, *shapes)
        if self.zero and parts.has(self.zero):
            parts.expect(self.zero, ("I8",), *shapes)
        return shape

    def load(self, parts: WeightParts) -> ScaledWeight:
        codes = parts.get("")
        if codes.dtype == torch.float8_e4m3fn and bool(codes.isnan().any()):
            raise parts.error(f"has values in {parts.stem!r} that are no numbers")
        stored = parts.get(scale := self._scale(parts))
        is_exponent = stored.dtype in (torch.uint8, torch.float8_e8m0fnu)
        scales = powers_of_two(stored) if is_exponent else stored.to(torch.float32)
        scales = parts.numbers(scale, scales)
        grid = self._grid(tuple(codes.shape))
        has_zeros = bool(self.zero) and parts.has(self.zero)
        zeros = parts.get(self.zero).to(torch.float32) if has_zeros else None
        rows, columns = codes.shape[-2:]
        return ScaledWeight(
            codes,
            scales.expand(grid) if scales.numel() == 1 else scales.reshape(grid),
            self.block[0] or rows,
            self.block[1] or columns,
            None if zeros is None else zeros.reshape(grid),
        )

    def _scale(self, parts: WeightParts) -> str:
        return next(filter(parts.has, self.scales), self.scales[0])

    def _grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales; the last blocks may be partial."""
        *rest, rows, columns = shape
        sizes = zip((rows, columns), self.block, strict=True)
        return (*rest, *(-(-size // (block or size)) for size, block in sizes))

    def _scale_shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A scale of each tensor or row may be stored without the dimensions that are 1."""
        grid = self._grid(shape)
        shapes = [grid]
        if grid[-1] == 1:
            shapes.append(grid[:-1])
        if grid[-2:] == (1, 1):
            shapes.append(grid[:-2])
            if len(shape) == 2:
                shapes.append((1,))
        return shapes
