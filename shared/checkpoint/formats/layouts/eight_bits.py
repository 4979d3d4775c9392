"""One byte a value under the weight's own name, with scales of tensors, rows, groups or blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.checkpoint.formats.linear_format import InputRounding, bits_in_codes
from shared.checkpoint.formats.tensor_heads import WeightHeads
from shared.checkpoint.weights.plain_tensors import PLAIN_DTYPES

FP8, INT8 = "F8_E4M3", "I8"
INPUT_SCALE = ".input_scale"  # of a module
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
    inputs: InputRounding | None = None  # None: they are in 16 bits

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

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        shape = heads.matrix()
        shapes = self._scale_shapes(shape)
        heads.expect(self.scale_suffix(heads), _SCALE_DTYPES, *shapes)
        if self.zero and heads.has(self.zero):
            heads.expect(self.zero, ("I8",), *shapes)
        if self.inputs is not None and self.inputs.is_static:
            of_module(heads).expect(INPUT_SCALE, _SCALE_DTYPES, (), (1,))
        return shape

    def scale_suffix(self, heads: WeightHeads) -> str:
        """The suffix of the scales that are there."""
        return next(filter(heads.has, self.scales), self.scales[0])

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales; the last blocks may be partial."""
        *rest, rows, columns = shape
        sizes = zip((rows, columns), self.block, strict=True)
        return (*rest, *(-(-size // (block or size)) for size, block in sizes))

    def _scale_shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A scale of each tensor or row may be stored without the dimensions that are 1."""
        grid = self.grid(shape)
        shapes = [grid]
        if grid[-1] == 1:
            shapes.append(grid[:-1])
        if grid[-2:] == (1, 1):
            shapes.append(grid[:-2])
            if len(shape) == 2:
                shapes.append((1,))
        return shapes


def of_module(heads: WeightHeads) -> WeightHeads:
    """Tensors beside the weight."""
    return WeightHeads(heads.stem.removesuffix(".weight"), heads.heads)
