"""Numbers of four bits with a scale for each block of a row: MXFP4 and NVFP4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.checkpoint.formats.linear_format import bits_in_codes
from shared.checkpoint.formats.tensor_heads import WeightHeads

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

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        shape = _check_blocks(heads, self.marker, NVFP4_BLOCK, ("F8_E4M3",))
        heads.expect(self.global_scale, ("F32",), (), (1,), shape[:-2])
        return shape


@dataclass(frozen=True, slots=True)
class PackedMxfp4:
    """`LinearFormat`: blocks of 32 have a power of two; compressed-tensors' tensors."""

    marker = "_packed"
    ending = ""
    dtypes = frozenset({"U8"})
    name = "mxfp4"
    code_bits = bits_in_codes(4, MXFP4_BLOCK)
    suffixes: Sequence[str] = ("_packed", "_scale")

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        return _check_blocks(heads, self.marker, MXFP4_BLOCK, ("U8", "F8_E8M0"))


@dataclass(frozen=True, slots=True)
class ExpertMxfp4:
    """`LinearFormat` of GPT-OSS: experts [num_experts, out, blocks, 16], kept as [.., in, out]."""

    marker = "_blocks"
    ending = ""
    dtypes = frozenset({"U8"})
    name = "mxfp4"
    code_bits = bits_in_codes(4, MXFP4_BLOCK)
    suffixes: Sequence[str] = ("_blocks", "_scales")

    def check(self, heads: WeightHeads) -> tuple[int, ...]:
        shape = heads.matrix("_blocks", num_dims=4)
        if 2 * shape[3] != MXFP4_BLOCK:
            raise heads.error(
                f"has {heads.stem + '_blocks'!r} of shape {shape}, which are no blocks of 32"
            )
        num_experts, out_features, num_blocks, _ = shape
        heads.expect("_scales", ("U8",), shape[:3])
        return num_experts, num_blocks * MXFP4_BLOCK, out_features


def _check_blocks(
    heads: WeightHeads, marker: str, block: int, scale_dtypes: Sequence[str]
) -> tuple[int, ...]:
    """The shape of a weight that has two values in a byte, and a scale for each whole block."""
    *rest, num_bytes = heads.matrix(marker)
    if 2 * num_bytes % block:
        raise heads.error(f"has {heads.stem + marker!r} with rows of partial blocks")
    heads.expect("_scale", scale_dtypes, (*rest, 2 * num_bytes // block))
    return (*rest, 2 * num_bytes)
