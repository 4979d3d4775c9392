"""Reads one byte a value, with scales of tensors, rows, groups or blocks."""

from __future__ import annotations

import torch

from shared.checkpoint.formats.layouts.eight_bits import INPUT_SCALE, EightBits, of_module
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight
from worker.engine.formats.stored.bit_packing import powers_of_two
from worker.engine.formats.weight_parts import WeightParts

_NAN_MAGNITUDE = 0x7F


def load_eight_bits(layout: EightBits, parts: WeightParts) -> ScaledWeight:
    """Loads heads that were checked. Raises ConfigError."""
    codes = parts.get("")
    if codes.dtype == torch.float8_e4m3fn and _has_nan(codes):
        raise parts.error(f"has values in {parts.stem!r} that are no numbers")
    stored = parts.get(scale := layout.scale_suffix(parts.heads))
    is_exponent = stored.dtype in (torch.uint8, torch.float8_e8m0fnu)
    scales = powers_of_two(stored) if is_exponent else stored.to(torch.float32)
    scales = parts.numbers(scale, scales)
    grid = layout.grid(tuple(codes.shape))
    has_zeros = bool(layout.zero) and parts.heads.has(layout.zero)
    zeros = parts.get(layout.zero).to(torch.float32) if has_zeros else None
    rows, columns = codes.shape[-2:]
    return ScaledWeight(
        codes,
        scales.expand(grid) if scales.numel() == 1 else scales.reshape(grid),
        layout.block[0] or rows,
        layout.block[1] or columns,
        None if zeros is None else zeros.reshape(grid),
        inputs=_inputs(layout, parts),
    )


def _has_nan(codes: torch.Tensor) -> bool:
    """Whether e4m3 has one, whose largest magnitude is none; by bytes, 25 times as fast as by
    numbers.
    """
    return int((codes.view(torch.uint8) & _NAN_MAGNITUDE).max()) == _NAN_MAGNITUDE


def _inputs(layout: EightBits, parts: WeightParts) -> InputCodes | None:
    if layout.inputs is None:
        return None
    if not layout.inputs.is_static:
        return InputCodes(layout.inputs.size)
    beside = WeightParts(of_module(parts.heads), parts.files)
    scale = beside.scales(INPUT_SCALE).item()
    if scale <= 0.0:
        raise parts.error(f"has {scale} in {beside.stem + INPUT_SCALE!r}, which is not above 0")
    return InputCodes(scale=scale)
