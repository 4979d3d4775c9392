"""Reads numbers of four bits with a scale for each block of a row: MXFP4 and NVFP4."""

from __future__ import annotations

from dataclasses import replace

import torch

from shared.checkpoint.formats.layouts.four_bit_floats import (
    MXFP4_BLOCK,
    NVFP4_BLOCK,
    ExpertMxfp4,
    Nvfp4,
    PackedMxfp4,
)
from worker.engine.formats.block_codes import nibble_codes
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.formats.stored.bit_packing import E2M1_BOOK, powers_of_two
from worker.engine.formats.weight_parts import WeightParts


def load_nvfp4(layout: Nvfp4, parts: WeightParts) -> ScaledWeight:
    """Loads heads that were checked. Raises ConfigError."""
    whole = parts.scales(layout.global_scale)
    if layout.is_divisor and bool((whole == 0).any()):
        raise parts.error(f"has zero for {parts.stem + layout.global_scale!r}")
    scales = parts.scales("_scale")
    whole = whole.reshape(*(whole.shape if whole.numel() > 1 else ()), 1, 1)
    scales = scales / whole if layout.is_divisor else scales * whole
    return _in_blocks(parts.get(layout.marker), scales, NVFP4_BLOCK)


def load_mxfp4(layout: PackedMxfp4, parts: WeightParts) -> ScaledWeight:
    """Loads heads that were checked. Raises ConfigError."""
    scales = parts.numbers("_scale", powers_of_two(parts.get("_scale")))
    return _in_blocks(parts.get(layout.marker), scales, MXFP4_BLOCK)


def load_expert_mxfp4(layout: ExpertMxfp4, parts: WeightParts) -> ScaledWeight:
    """Loads heads that were checked. Raises ConfigError."""
    scales = parts.numbers("_scales", powers_of_two(parts.get("_scales")))
    packed = parts.get(layout.marker).flatten(-2)
    return replace(_in_blocks(packed, scales, MXFP4_BLOCK), is_turned=True)


def _in_blocks(packed: torch.Tensor, scales: torch.Tensor, block: int) -> ScaledWeight:
    """Reads [..., rows, columns / 2] whose blocks are whole."""
    num_matrices = None if packed.ndim == 2 else packed.shape[:-2].numel()
    codes = nibble_codes(packed.flatten(0, -2), num_matrices=num_matrices)
    return ScaledWeight(codes, scales, 1, block, book=torch.tensor(E2M1_BOOK))
