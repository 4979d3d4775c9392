"""Numbers of four bits with a scale for each block of a row: MXFP4 and NVFP4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from worker.engine.formats.linear_format import WeightParts, bits_in_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import E2M1_BOOK, powers_of_two, unpack_nibbles

MXFP4_BLOCK = 32
NVFP4_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """`LinearFormat`: blocks of 16 have a scale in FP8, and the tensor has one in float32."""

    marker: str  # suffix of the values, two in a byte
    global_scale: str  # suffix of the tensor's own
    is_divisor: bool  # the blocks' scales are divided by it, not multiplied

    ending = ""
    dtypes = frozenset({"U8"})
    name = "nvfp4"
    code_bits = bits_in_codes(4, NVFP4_BLOCK)

    @property
    def suffixes(self) -> Sequence[str]:
        return (self.marker, "_scale", self.global_scale)

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        shape = _check_blocks(parts, self.marker, NVFP4_BLOCK, ("F8_E4M3",))
        parts.expect(self.global_scale, ("F32",), (), (1,), shape[:-2])
        return shape

    def load(self, parts: WeightParts) -> ScaledWeight:
        whole = parts.scales(self.global_scale)
        if self.is_divisor and bool((whole == 0).any()):
            raise parts.error(f"has zero for {parts.stem + self.global_scale!r}")
        scales = parts.scales("_scale")
        whole = whole.reshape(*(whole.shape if whole.numel() > 1 else ()), 1, 1)
        scales = scales / whole if self.is_divisor else scales * whole
        return _in_blocks(unpack_nibbles(parts.get(self.marker)), scales, NVFP4_BLOCK)


@dataclass(frozen=True, slots=True)
class PackedMxfp4:
    """`LinearFormat`: blocks of 32 have a power of two; compressed-tensors' tensors."""

    marker = "_packed"
    ending = ""
    dtypes = frozenset({"U8"})
    name = "mxfp4"
    code_bits = bits_in_codes(4, MXFP4_BLOCK)
    suffixes: Sequence[str] = ("_packed", "_scale")

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        return _check_blocks(parts, self.marker, MXFP4_BLOCK, ("U8", "F8_E8M0"))

    def load(self, parts: WeightParts) -> ScaledWeight:
        scales = parts.numbers("_scale", powers_of_two(parts.get("_scale")))
        return _in_blocks(unpack_nibbles(parts.get(self.marker)), scales, MXFP4_BLOCK)


@dataclass(frozen=True, slots=True)
class ExpertMxfp4:
    """`LinearFormat` of GPT-OSS: experts [num_experts, out, blocks, 16], kept as [.., in, out]."""

    marker = "_blocks"
    ending = ""
    dtypes = frozenset({"U8"})
    name = "mxfp4"
    code_bits = bits_in_codes(4, MXFP4_BLOCK)
    suffixes: Sequence[str] = ("_blocks", "_scales")

    def check(self, parts: WeightParts) -> tuple[int, ...]:
        shape = parts.matrix("_blocks", num_dims=4)
        if 2 * shape[3] != MXFP4_BLOCK:
            raise parts.error(
                f"has {parts.stem + '_blocks'!r} of shape {shape}, which are no blocks of 32"
            )
        num_experts, out_features, num_blocks, _ = shape
        parts.expect("_scales", ("U8",), shape[:3])
        return num_experts, num_blocks * MXFP4_BLOCK, out_features

    def load(self, parts: WeightParts) -> ScaledWeight:
        scales = parts.numbers("_scales", powers_of_two(parts.get("_scales")))
        codes = unpack_nibbles(parts.get("_blocks")).flatten(-2)
        return replace(_in_blocks(codes, scales, MXFP4_BLOCK), is_turned=True)


def _check_blocks(
    parts: WeightParts, marker: str, block: int, scale_dtypes: Sequence[str]
) -> tuple[int, ...]:
    """The shape of a weight that has two values in a byte, and a scale for each whole block."""
    *rest, num_bytes = parts.matrix(marker)
    if 2 * num_bytes % block:
        raise parts.error(f"has {parts.stem + marker!r} with rows of partial blocks")
    parts.expect("_scale", scale_dtypes, (*rest, 2 * num_bytes // block))
    return (*rest, 2 * num_bytes)


def _in_blocks(codes: torch.Tensor, scales: torch.Tensor, block: int) -> ScaledWeight:
    return ScaledWeight(codes, scales, 1, block, book=torch.tensor(E2M1_BOOK))
