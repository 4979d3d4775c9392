"""The tensors of bitsandbytes: four bits by a book, and eight bits by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch

from shared.errors import ConfigError
from worker.engine.formats.linear_format import WeightParts, bits_in_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import unpack_nibbles

_INT8_RANGE = 127.0
_WEIGHT, _BOOK, _MAXIMA = "weight", "weight.quant_map", "weight.absmax"
_NESTED_BOOK, _NESTED_MAXIMA = "weight.nested_quant_map", "weight.nested_absmax"
_MAX_STATE_BYTES = 4096

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

    marker = _WEIGHT
    ending = _WEIGHT
    dtypes = frozenset({"U8"})
    code_bits = None  # the books are no numbers of bfloat16

    @property
    def name(self) -> str:
        return self.kind

    @property
    def suffixes(self) -> Sequence[str]:
        return (_WEIGHT, _BOOK, _MAXIMA, _NESTED_BOOK, _NESTED_MAXIMA, self._state_suffix)

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        state = self._state(parts)
        num_values = math.prod(state.shape)
        if state.quant_type != self.kind or num_values % 2:
            raise parts.error(f"has an unknown state of {parts.stem + _WEIGHT!r}: {state}")
        num_blocks = -(-num_values // state.blocksize)
        parts.expect(_WEIGHT, ("U8",), (num_values // 2, 1))
        parts.expect(_BOOK, ("F32",), (16,))
        if state.nested_blocksize == 0:
            parts.expect(_MAXIMA, ("F32",), (num_blocks,))
            return state.shape
        parts.expect(_MAXIMA, ("U8",), (num_blocks,))
        parts.expect(_NESTED_BOOK, ("F32",), (256,))
        parts.expect(_NESTED_MAXIMA, ("F32",), (-(-num_blocks // state.nested_blocksize),))
        return state.shape

    def load(self, parts: WeightParts) -> ScaledWeight:
        """Blocks go over the ends of rows: each value gets the scale of its own."""
        state = self._state(parts)
        rows, columns = state.shape
        codes = unpack_nibbles(parts.get(_WEIGHT).flatten(), high_first=True).view(rows, columns)
        maxima = self._maxima(parts, state)
        book = parts.scales(_BOOK)
        if columns % state.blocksize == 0:
            return ScaledWeight(codes, maxima.view(rows, -1), 1, state.blocksize, book=book)
        scales = maxima.repeat_interleave(state.blocksize)[: rows * columns].view(rows, columns)
        return ScaledWeight(codes, scales, 1, 1, book=book)

    def _maxima(self, parts: WeightParts, state: QuantState) -> torch.Tensor:
        if state.nested_blocksize == 0:
            return parts.scales(_MAXIMA)
        codes = parts.get(_MAXIMA)
        maxima = parts.scales(_NESTED_MAXIMA).repeat_interleave(state.nested_blocksize)
        values = parts.scales(_NESTED_BOOK)[codes.to(torch.int32)] * maxima[: len(codes)]
        return parts.numbers(_MAXIMA, values + state.nested_offset)

    @property
    def _state_suffix(self) -> str:
        return f"weight.quant_state.bitsandbytes__{self.kind}"

    def _state(self, parts: WeightParts) -> QuantState:
        num_bytes = parts.header(self._state_suffix).num_bytes
        if num_bytes > _MAX_STATE_BYTES:
            raise parts.error(f"has {num_bytes} bytes in {parts.stem + self._state_suffix!r}")
        try:
            raw = bytes(parts.get(self._state_suffix).tolist())
            return msgspec.json.decode(raw, type=QuantState)
        except (msgspec.DecodeError, TypeError, ValueError) as exc:
            raise ConfigError(f"cannot read {parts.stem + self._state_suffix!r}: {exc}") from exc


@dataclass(frozen=True, slots=True)
class BitsAndBytes8:
    """`LinearFormat` of LLM.int8(): a row's largest value is 127."""

    marker = _WEIGHT
    ending = _WEIGHT
    dtypes = frozenset({"I8"})
    name = "int8 by channel"
    code_bits = bits_in_codes(8, None)
    suffixes: Sequence[str] = (_WEIGHT, "SCB", "weight_format")

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        shape = parts.matrix(_WEIGHT, num_dims=2)
        parts.expect("SCB", ("F32",), shape[:1])
        if not parts.has("weight_format"):
            return shape
        parts.expect("weight_format", ("U8",), (), (1,))
        if int(parts.get("weight_format")) != 0:
            raise parts.error(f"has {parts.stem + _WEIGHT!r} in an order of a GPU: not supported")
        return shape

    def load(self, parts: WeightParts) -> ScaledWeight:
        codes = parts.get(_WEIGHT)
        scales = parts.scales("SCB")[:, None] / _INT8_RANGE
        return ScaledWeight(codes, scales, 1, codes.shape[1])
