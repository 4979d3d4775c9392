"""Codes that are made of a weight's numbers while it is loaded, with nothing but its own values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch.nn import functional

from shared.checkpoint.formats.linear_format import bits_in_codes
from shared.checkpoint.stored_format import INT4_GROUP, MadeFormat
from worker.engine.device.torch_threads import lone_threads
from worker.engine.formats.scaled_weight import ScaledWeight

# How many bits a value takes, its share of scales included.
CODE_BITS: Mapping[MadeFormat, float] = {
    "int8": bits_in_codes(8, None),
    "int4": bits_in_codes(4, INT4_GROUP, has_zeros=True),
    "fp8": bits_in_codes(8, None),
}
_MAX_INT8, _MAX_INT4, _MAX_FLOAT8 = 127.0, 15.0, 448.0
_CHUNK_VALUES = 1 << 17  # what one thread makes codes of at once, in a processor's own cache
# Of their weights' names; Granite's lie in two tensors of other names.
_EXPERTS = (".experts.", ".block_sparse_moe.input_linear.", ".block_sparse_moe.output_linear.")


def is_of_experts(name: str) -> bool:
    """Whether a tensor of a mixture is a weight of its experts, shared ones not among them."""
    return any(part in name for part in _EXPERTS) and not name.endswith("bias")


def make_codes(kind: MadeFormat, weight: torch.Tensor, num_threads: int = 1) -> ScaledWeight:
    """The codes of a weight [out_features, in_features] as it is stored, or of experts with such,
    the same on every machine.
    """
    make, matrices = _MAKERS[kind], weight if weight.ndim == 3 else weight[None]
    sample = make(matrices[0, :1].float())
    num_matrices, num_rows, num_columns = matrices.shape

    def room(like: torch.Tensor) -> torch.Tensor:
        return torch.empty(num_matrices, num_rows, like.shape[1], dtype=like.dtype)

    codes, scales = room(sample.codes), room(sample.scales)
    zeros = None if sample.zeros is None else room(sample.zeros)
    step = max(1, _CHUNK_VALUES // num_columns)

    @torch.inference_mode()  # a thread's own; what loads the model may be in it
    def fill(place: tuple[int, int]) -> None:
        idx, start = place
        rows = slice(start, start + step)
        made = make(matrices[idx, rows].float())
        codes[idx, rows], scales[idx, rows] = made.codes, made.scales
        if zeros is not None and made.zeros is not None:
            zeros[idx, rows] = made.zeros

    places = product(range(num_matrices), range(0, num_rows, step))
    with lone_threads(num_threads) as threads:
        list(threads.map(fill, places))
    return replace(
        sample,
        stored=codes.view(weight.shape),
        scales=scales.view(*weight.shape[:-1], -1),
        zeros=None if zeros is None else zeros.view(*weight.shape[:-1], -1),
    )


def _int8(weight: torch.Tensor) -> ScaledWeight:
    scales = _scales(weight.abs().amax(1, keepdim=True), _MAX_INT8)
    codes = (weight / scales).round().clamp(-_MAX_INT8, _MAX_INT8).to(torch.int8)
    return ScaledWeight(codes, scales, 1, weight.shape[1])


def _float8(weight: torch.Tensor) -> ScaledWeight:
    scales = _scales(weight.abs().amax(1, keepdim=True), _MAX_FLOAT8)
    codes = (weight / scales).clamp(-_MAX_FLOAT8, _MAX_FLOAT8).to(torch.float8_e4m3fn)
    return ScaledWeight(codes, scales, 1, weight.shape[1])


def _int4(weight: torch.Tensor) -> ScaledWeight:
    """From the least to the largest of a group, zero among them: half the error of a range that is
    as wide on both sides of zero, where a group leans to one.
    """
    num_rows, num_columns = weight.shape
    padding = -num_columns % INT4_GROUP
    groups = functional.pad(weight, (0, padding)).view(num_rows, -1, INT4_GROUP)
    least, largest = groups.amin(-1).clamp(max=0.0), groups.amax(-1).clamp(min=0.0)
    scales = _scales(largest - least, _MAX_INT4)
    zeros = (-least / scales).round()
    codes = (groups / scales[..., None]).round() + zeros[..., None]
    codes = codes.clamp(0.0, _MAX_INT4).to(torch.uint8).flatten(1)
    return ScaledWeight(codes[:, :num_columns], scales, 1, INT4_GROUP, zeros)


_MAKERS: Mapping[MadeFormat, Callable[[torch.Tensor], ScaledWeight]] = {
    "int8": _int8,
    "int4": _int4,
    "fp8": _float8,
}


def _scales(ranges: torch.Tensor, num_steps: float) -> torch.Tensor:
    """Where all values are zero, any scale will do."""
    return (ranges / num_steps).masked_fill(ranges == 0.0, 1.0)
