"""Weights in the library's own layouts."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence

import torch

from worker.engine.formats.block_codes import BlockCodes, BlockRows
from worker.engine.formats.scaled_weight import KEPT_INPUTS, InputCodes, ScaledWeight
from worker.engine.models.decoder_weights import Projection
from worker.engine.native.coded_layout import (
    CODES4,
    CODES8,
    INT4,
    INT6,
    INT8,
    CodedLayout,
    coded_layout,
    integer_layout,
)
from worker.engine.native.native_library import (
    NUM_PLANES,
    BitPlaneStruct,
    BlockFormatStruct,
    LinearStruct,
    NativeLibrary,
    StoredRowsStruct,
)
from worker.engine.native.weight_memory import HeapMemory, WeightMemory, place_tensor

BLOCK_COLS = 32  # kBlockCols of linear_weights.h
_BF16_BITS, _BITS = 16, {CODES8: 8, CODES4: 4, INT8: 8, INT4: 4, INT6: 6}
_QUAD = 4


class PackedWeights:
    """Packs weights into a `WeightMemory`: the pointers of their structs are its places."""

    def __init__(
        self,
        library: NativeLibrary,
        memory: WeightMemory | None = None,
        inputs: InputCodes | None = None,
        num_threads: int = 1,
    ) -> None:
        """By default into memory of its own. `inputs`: of weights that do not tell theirs;
        `KEPT_INPUTS` those of all."""
        self._num_threads = num_threads
        self._library = library
        self._memory = HeapMemory(library) if memory is None else memory
        self._inputs = inputs
        self._num_values, self._num_coded, self._num_integers = 0, 0, 0

    @property
    def num_values(self) -> int:
        """All so far."""
        return self._num_values

    @property
    def num_coded(self) -> int:
        """How many of the values so far are multiplied in their codes."""
        return self._num_coded

    @property
    def coded_share(self) -> float:
        """The same beside all values so far."""
        return self._num_coded / max(1, self._num_values)

    @property
    def integer_share(self) -> float:
        """The share of all values so far whose inputs are rounded to integers."""
        return self._num_integers / max(1, self._num_values)

    @property
    def has_integers(self) -> bool:
        return self._num_integers > 0

    @property
    def num_bytes(self) -> int:
        """The bytes of all memory that they take."""
        return self._memory.num_bytes

    def linear(self, projection: Projection, *, interleaved: bool = False) -> LinearStruct:
        """In its codes where there is a layout for them, else in bfloat16.

        `interleaved`: of gates and the values that they are multiplied with, one half after the
        other; partners are packed side by side. Raises ConfigError where memory is out.
        """
        bias = projection.bias
        bias_ptr = None
        if bias is not None:
            bias_ptr = self.floats(_in_blocks(bias, interleaved=interleaved))
        weight = projection.weight
        self._num_values += math.prod(weight.shape)
        if isinstance(weight, ScaledWeight):
            layout = self._layout(weight)
            if layout is not None:
                self._num_coded += math.prod(weight.shape)
                return self._coded(layout, bias_ptr, interleaved=interleaved)
            weight = weight.dense(torch.bfloat16)
        rows = weight.contiguous()
        out_features, in_features = rows.shape
        packed = self._memory.place(
            _num_bytes(rows.shape, _BF16_BITS, interleaved=interleaved),
            lambda address: self._library.pack_linear(
                rows.data_ptr(),
                out_features,
                in_features,
                int(interleaved),
                self._num_threads,
                address,
            ),
        )
        return LinearStruct(packed, bias_ptr, in_features, out_features)

    def _layout(self, weight: ScaledWeight) -> CodedLayout | None:
        is_kept = self._inputs == KEPT_INPUTS
        inputs = None if is_kept else weight.inputs or self._inputs
        layout = None if inputs is None else integer_layout(weight, inputs)
        if layout is None:
            return coded_layout(weight)
        self._num_integers += math.prod(weight.shape)
        return layout

    def _coded(
        self, layout: CodedLayout, bias_ptr: int | None, *, interleaved: bool
    ) -> LinearStruct:
        codes = layout.codes
        out_features, in_features = codes.shape
        place, num_threads = self._memory.place, self._num_threads
        num_bytes = _num_bytes(_whole_shape(layout), _BITS[layout.layout], interleaved=interleaved)
        sizes = (out_features, in_features, int(interleaved), num_threads)
        if isinstance(codes, BlockCodes):
            stored, pack = _StoredRows(codes), self._library.pack_stored
            packed = place(num_bytes, lambda to: pack(layout.layout, stored.struct, *sizes, to))
        else:
            rows, pack = codes.contiguous(), self._library.pack_codes
            packed = place(num_bytes, lambda to: pack(layout.layout, rows.data_ptr(), *sizes, to))
        zeros, integers, book = layout.zeros, layout.integers, layout.code_book
        if zeros is not None:
            zeros = _in_blocks(zeros, interleaved=interleaved).transpose(1, 2)
        if zeros is not None and integers is None:
            zeros = zeros.repeat_interleave(2, dim=-1)  # of both inputs of a pair
        linear = LinearStruct(
            packed,
            bias_ptr,
            in_features,
            out_features,
            layout.layout,
            layout.group_size,
            -(-in_features // layout.group_size),
            zeros=None if zeros is None else self._placed(zeros),
            code_book=None if book is None else self._placed(book),
        )
        if integers is not None:
            linear.zero_point, linear.span_size = integers.zero_point, integers.span_size
            linear.rounds_rows, linear.input_scale = integers.rounds_rows, integers.input_scale
        if layout.order is not None:
            linear.order = self._placed(layout.order)
        self._add_scales(linear, layout, interleaved=interleaved)
        return linear

    def _add_scales(self, linear: LinearStruct, layout: CodedLayout, *, interleaved: bool) -> None:
        def place(values: torch.Tensor | None) -> int | None:
            """[out_features, n] as [num_blocks, n, BLOCK_COLS]."""
            if values is None:
                return None
            return self._placed(_in_blocks(values, interleaved=interleaved).transpose(1, 2))

        linear.scales, linear.minima = place(layout.scales), place(layout.minima)
        steps = layout.steps
        if steps is None:
            return
        linear.scale_steps = place(steps.scales.to(torch.int8))
        if steps.minima is not None:
            linear.minimum_steps = place(steps.minima.to(torch.int8))
        linear.share_bits = (steps.scales.shape[1] // layout.scales.shape[1]).bit_length() - 1

    def with_bias(self, linear: LinearStruct, bias: torch.Tensor) -> LinearStruct:
        """The same weights, of rows in order, with `bias` [out_features]."""
        biased = LinearStruct.from_buffer_copy(linear)
        biased.bias = self.floats(_in_blocks(bias, interleaved=False))
        return biased

    def floats(self, tensor: torch.Tensor) -> int:
        """Where its values lie in float32."""
        return self._placed(tensor.float())

    def _placed(self, tensor: torch.Tensor) -> int:
        return place_tensor(self._memory, tensor)


class _StoredRows:
    """Codes that are bits of blocks, as the library reads them; what it points to lives with it."""

    def __init__(self, codes: BlockCodes) -> None:
        zero, rows, columns = codes.zero, codes.rows, codes.columns
        structs = [each for part in codes.parts for each in _format_structs(part, zero)]
        formats = (BlockFormatStruct * len(structs))(*structs)
        addresses = torch.cat([_addresses(part) for part in codes.parts])[rows]
        format_of_row = _formats_of_rows(codes.parts)[rows]
        self._owned = codes, formats, addresses, format_of_row
        self.struct = StoredRowsStruct(
            ctypes.addressof(formats),
            format_of_row.data_ptr(),
            addresses.data_ptr(),
            zero,
            None if columns is None else columns.data_ptr(),
        )


def _format_structs(part: BlockRows, zero: int) -> Iterator[BlockFormatStruct]:
    """One for each place in a block."""
    num_values, num_bytes, planes, own_zero, flipped, places, high_first = part.format
    structs = (BitPlaneStruct * NUM_PLANES)(*(BitPlaneStruct(*plane) for plane in planes))
    stride = part.rows.stride(1) * num_bytes  # of bytes side by side, and of words wherever
    for place in places:
        yield BlockFormatStruct(
            num_values, num_bytes, stride, place, flipped, zero - own_zero, high_first, structs
        )


def _formats_of_rows(parts: Sequence[BlockRows]) -> torch.Tensor:
    """[num_rows] uint8, of all structs of the parts."""
    found, start = [], 0
    for part in parts:
        num_places = len(part.format.places)
        own = torch.arange(start, start + num_places, dtype=torch.uint8)
        found.append(own.repeat(len(part.rows)))
        start += num_places
    return torch.cat(found)


def _addresses(part: BlockRows) -> torch.Tensor:
    """[num_rows] int64."""
    rows = part.rows
    starts = rows.data_ptr() + torch.arange(len(rows)) * (rows.stride(0) * rows.itemsize)
    return starts.repeat_interleave(len(part.format.places))


def _whole_shape(layout: CodedLayout) -> tuple[int, int]:
    """Of integers with whole quads."""
    out_features, in_features = layout.codes.shape
    return out_features, in_features + (-in_features % _QUAD if layout.integers else 0)


def _num_bytes(shape: Sequence[int], num_bits: int, *, interleaved: bool) -> int:
    """The bytes of a weight in whole blocks."""
    out_features, in_features = shape
    block_rows = BLOCK_COLS // 2 if interleaved else BLOCK_COLS
    num_blocks = -(-out_features // (2 if interleaved else 1) // block_rows)
    return num_blocks * BLOCK_COLS * in_features * num_bits // 8


def _in_blocks(values: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """[out_features, ...] as [num_blocks, BLOCK_COLS, ...], in the order in which the library packs
    rows: `interleaved` puts as many of the first half beside their partners. 0 where no row is.
    """
    parts = values.chunk(2) if interleaved else (values,)
    width = BLOCK_COLS // len(parts)
    padded = [_pad(part, width) for part in parts]
    return torch.cat([part.view(-1, width, *part.shape[1:]) for part in padded], dim=1)


def _pad(values: torch.Tensor, multiple: int) -> torch.Tensor:
    """Along the first dimension."""
    rest = (0, 0) * (values.ndim - 1)
    return torch.nn.functional.pad(values, (*rest, 0, -len(values) % multiple))
