"""Weights in the library's own layouts, and the memory that they are in."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch

from shared.errors import ConfigError
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.models.decoder_weights import Projection
from worker.engine.native.coded_layout import CODES4, CODES8, CodedLayout, coded_layout
from worker.engine.native.native_library import LinearStruct, NativeLibrary

BLOCK_COLS = 32  # kBlockCols of linear_weights.h
_BF16_BITS, _BITS = 16, {CODES8: 8, CODES4: 4}
_CHUNK_BYTES = 32 << 20  # allocated at once, for weights that are smaller
_LINE_BYTES = 64  # where a weight may begin


class PackedWeights:
    """Packs weights, and owns all memory that their structs point to."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._tensors: list[torch.Tensor] = []  # kept alive
        self._num_values, self._num_coded = 0, 0
        self._num_packed_bytes = 0
        self._free_start, self._num_free_bytes = 0, 0  # of the last chunk

    @property
    def num_coded(self) -> int:
        """Of the values so far: how many are multiplied in their codes."""
        return self._num_coded

    @property
    def coded_share(self) -> float:
        """The same beside all values so far."""
        return self._num_coded / max(1, self._num_values)

    @property
    def num_bytes(self) -> int:
        """Of all memory that it owns."""
        return self._num_packed_bytes + sum(tensor.nbytes for tensor in self._tensors)

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
            layout = coded_layout(weight)
            if layout is not None:
                self._num_coded += weight.codes.numel()
                return self._coded(layout, bias_ptr, interleaved=interleaved)
            weight = weight.dense(torch.bfloat16)
        weight = weight.contiguous()
        out_features, in_features = weight.shape
        packed = self._allocate(weight.shape, _BF16_BITS, interleaved=interleaved)
        self._library.pack_linear(
            weight.data_ptr(),
            out_features,
            in_features,
            int(interleaved),
            torch.get_num_threads(),
            packed,
        )
        return LinearStruct(packed, bias_ptr, in_features, out_features)

    def _coded(
        self, layout: CodedLayout, bias_ptr: int | None, *, interleaved: bool
    ) -> LinearStruct:
        codes = layout.codes.contiguous()
        out_features, in_features = codes.shape
        packed = self._allocate(codes.shape, _BITS[layout.layout], interleaved=interleaved)
        self._library.pack_codes(
            layout.layout,
            codes.data_ptr(),
            out_features,
            in_features,
            int(interleaved),
            torch.get_num_threads(),
            packed,
        )
        zeros = layout.zeros
        if zeros is not None:
            zeros = _in_blocks(zeros, interleaved=interleaved).transpose(1, 2)
            zeros = zeros.repeat_interleave(2, dim=-1)  # of both inputs of a pair
        linear = LinearStruct(
            packed,
            bias_ptr,
            in_features,
            out_features,
            layout.layout,
            layout.group_size,
            zeros=None if zeros is None else self._kept(zeros),
            code_book=self._kept(layout.code_book),
        )
        self._add_scales(linear, layout, interleaved=interleaved)
        return linear

    def _add_scales(self, linear: LinearStruct, layout: CodedLayout, *, interleaved: bool) -> None:
        def place(values: torch.Tensor | None) -> int | None:
            """[out_features, n] as [num_blocks, n, BLOCK_COLS]."""
            if values is None:
                return None
            return self._kept(_in_blocks(values, interleaved=interleaved).transpose(1, 2))

        steps = layout.steps
        if steps is None:
            linear.scales, linear.minima = place(layout.scales), place(layout.minima)
            return
        linear.scales, linear.minima = place(steps.scales), place(steps.minima)
        linear.scale_steps = place(steps.scale_steps.to(torch.int8))
        if steps.minimum_steps is not None:
            linear.minimum_steps = place(steps.minimum_steps.to(torch.int8))
        linear.groups_per_scale = steps.scale_steps.shape[1] // steps.scales.shape[1]

    def _allocate(self, shape: Sequence[int], num_bits: int, *, interleaved: bool) -> int:
        """Room for a weight, freed with us. Raises ConfigError where memory is out."""
        out_features, in_features = shape
        block_rows = BLOCK_COLS // 2 if interleaved else BLOCK_COLS
        num_blocks = -(-out_features // (2 if interleaved else 1) // block_rows)
        num_bytes = num_blocks * BLOCK_COLS * in_features * num_bits // 8
        num_bytes = -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
        if num_bytes > self._num_free_bytes:
            self._add_chunk(max(num_bytes, _CHUNK_BYTES))
        start = self._free_start
        self._free_start += num_bytes
        self._num_free_bytes -= num_bytes
        self._num_packed_bytes += num_bytes
        return start

    def _add_chunk(self, num_bytes: int) -> None:
        chunk: int | None = self._library.allocate(num_bytes)
        if chunk is None:
            raise ConfigError(f"no memory for a weight of {num_bytes >> 20} MiB")
        weakref.finalize(self, self._library.free, chunk)
        self._free_start, self._num_free_bytes = chunk, num_bytes

    def floats(self, tensor: torch.Tensor) -> int:
        """Where its values lie in float32."""
        return self._kept(tensor.float())

    def _kept(self, tensor: torch.Tensor) -> int:
        tensor = tensor.contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()


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
