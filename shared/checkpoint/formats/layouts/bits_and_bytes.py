"""The tensors of bitsandbytes: four bits by a book, and eight bits by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from shared.checkpoint.formats.linear_format import bits_in_codes
from shared.checkpoint.formats.tensor_heads import WeightHeads
from shared.errors import ConfigError

WEIGHT, BOOK, MAXIMA = "weight", "weight.quant_map", "weight.absmax"
NESTED_BOOK, NESTED_MAXIMA = "weight.nested_quant_map", "weight.nested_absmax"
ROW_MAXIMA, _ORDER = "SCB", "weight_format"
_MAX_STATE_BYTES = 4096
_USUAL_BLOCK = 64

_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class QuantState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What bitsandbytes writes beside a weight, as JSON in a tensor of bytes."""

    quant_type: str
    blocksize: _Size
    dtype: str
    shape: tuple[_Size, _Size]
    nested_blocksize: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    nested_dtype: str = ""
    nested_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class BitsAndBytes4:
    """`LinearFormat` of NF4 and FP4: the values of a weight in one row, in blocks with a maximum;
    with double quantisation the maxima are themselves codes of a book.
    """

    kind: str  # "nf4" or "fp4"

    marker = WEIGHT
    ending = WEIGHT
    dtypes = frozenset({"U8"})
    code_bits = bits_in_codes(4, _USUAL_BLOCK)

    @property
    def name(self) -> str:
        return self.kind

    @property
    def suffixes(self) -> Sequence[str]:
        return (WEIGHT, BOOK, MAXIMA, NESTED_BOOK, NESTED_MAXIMA, self._state_suffix)

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        state = self.state(heads)
        num_values = math.prod(state.shape)
        if state.quant_type != self.kind or num_values % 2:
            raise heads.error(f"has an unknown state of {heads.stem + WEIGHT!r}: {state}")
        num_blocks = -(-num_values // state.blocksize)
        heads.expect(WEIGHT, ("U8",), (num_values // 2, 1))
        heads.expect(BOOK, ("F32",), (16,))
        if state.nested_blocksize == 0:
            heads.expect(MAXIMA, ("F32",), (num_blocks,))
            return state.shape
        heads.expect(MAXIMA, ("U8",), (num_blocks,))
        heads.expect(NESTED_BOOK, ("F32",), (256,))
        heads.expect(NESTED_MAXIMA, ("F32",), (-(-num_blocks // state.nested_blocksize),))
        return state.shape

    def state(self, heads: WeightHeads) -> QuantState:
        """Raises ConfigError."""
        num_bytes = heads.header(self._state_suffix).num_bytes
        if num_bytes > _MAX_STATE_BYTES:
            raise heads.error(f"has {num_bytes} bytes in {heads.stem + self._state_suffix!r}")
        try:
            return msgspec.json.decode(heads.read_bytes(self._state_suffix), type=QuantState)
        except (msgspec.DecodeError, ValueError, RecursionError) as exc:
            raise ConfigError(f"cannot read {heads.stem + self._state_suffix!r}: {exc}") from exc

    @property
    def _state_suffix(self) -> str:
        return f"weight.quant_state.bitsandbytes__{self.kind}"


@dataclass(frozen=True, slots=True)
class BitsAndBytes8:
    """`LinearFormat` of LLM.int8(): a row's largest value is 127."""

    marker = WEIGHT
    ending = WEIGHT
    dtypes = frozenset({"I8"})
    name = "int8 by channel"
    code_bits = bits_in_codes(8, None)
    suffixes: Sequence[str] = (WEIGHT, ROW_MAXIMA, _ORDER)

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        shape = heads.matrix(WEIGHT, num_dims=2)
        heads.expect(ROW_MAXIMA, ("F32",), shape[:1])
        if not heads.has(_ORDER):
            return shape
        heads.expect(_ORDER, ("U8",), (), (1,))
        if heads.integers(_ORDER) != (0,):
            raise heads.error(f"has {heads.stem + WEIGHT!r} in an order of a GPU: not supported")
        return shape
