"""Weights as the tools store them, by their published layouts, and what they stand for."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
GROUP = 16  # columns
BLOCK = (48, 40)  # rows and columns: the last ones are partial
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Stored:
    """The tensors of a weight, and its values in float32."""

    tensors: Tensors
    values: torch.Tensor


Store = Callable[[str, torch.Tensor], Stored]  # of a module's name and its weight


@dataclass(frozen=True)
class Kind:
    """`section` is what the files say."""

    section: dict[str, Any]
    store: Store
    name: str = "quantization_config"  # the section's; or the file's, beside config.json
    largest_error: float = 0.1  # relative, of the values against the weight


def pack(values: torch.Tensor, num_bits: int) -> torch.Tensor:
    """[rows, n] -> [rows, n * bits / 32] int32: the first value in the lowest bits."""
    per_word = 32 // num_bits
    missing = -values.shape[1] % per_word
    padded = np.pad(values.numpy().astype(np.uint32), ((0, 0), (0, missing)))
    words = np.zeros((len(values), padded.shape[1] // per_word), np.uint32)
    for place in range(per_word):
        words |= padded[:, place::per_word] << np.uint32(place * num_bits)
    return torch.from_numpy(words.view(np.int32))


def pack_bytes(codes: torch.Tensor) -> torch.Tensor:
    """[..., n] of four bits -> [..., n / 2] uint8: the first value in the lower half."""
    codes = codes.to(torch.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()


def spread(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """A scale for each value, without any of the product's code."""
    rows = [row // block[0] for row in range(shape[0])]
    columns = [column // block[1] for column in range(shape[1])]
    return scales.float()[rows][:, columns]


def largest(weight: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Of the magnitudes in each block."""
    rows = weight.abs().split(block[0])
    return torch.stack(
        [torch.stack([part.max() for part in row.split(block[1], dim=1)]) for row in rows]
    )


def store_bytes(
    module: str, weight: torch.Tensor, *, dtype: torch.dtype, block: tuple[int, int], scale: str
) -> Stored:
    """Blocks of (0, 0) are the whole tensor, (1, 0) are rows."""
    size = block[0] or weight.shape[0], block[1] or weight.shape[1]
    limit = 127.0 if dtype == torch.int8 else 448.0
    scales = (largest(weight, size) / limit).to(torch.bfloat16)
    each = spread(scales, size, weight.shape)
    ratio = (weight / each).clamp(-limit, limit)
    codes = (ratio.round() if dtype == torch.int8 else ratio).to(dtype)
    shaped = scales.reshape(()) if block == (0, 0) else scales
    tensors = {f"{module}.weight": codes, f"{module}.{scale}": shaped}
    return Stored(tensors, codes.float() * each)


def store_int8_with_zeros(module: str, weight: torch.Tensor) -> Stored:
    scales, codes, zeros = _asymmetric(weight, GROUP, 8)
    each = spread(scales, (1, GROUP), weight.shape)
    tensors = {
        f"{module}.weight": (codes - 128).to(torch.int8),
        f"{module}.weight_scale": scales,
        f"{module}.weight_zero_point": (zeros - 128).to(torch.int8),
    }
    return Stored(tensors, (codes - spread(zeros, (1, GROUP), weight.shape)) * each)


def store_packed(
    module: str, weight: torch.Tensor, *, num_bits: int, has_zeros: bool, group: int = GROUP
) -> Stored:
    """pack-quantized of compressed-tensors."""
    size = group or weight.shape[1]
    if has_zeros:
        scales, codes, zeros = _asymmetric(weight, size, num_bits)
    else:
        half = 1 << (num_bits - 1)
        scales = (largest(weight, (1, size)) / (half - 1)).to(torch.bfloat16)
        ratio = weight / spread(scales, (1, size), weight.shape)
        codes, zeros = ratio.round().clamp(-half, half - 1) + half, torch.full(scales.shape, half)
    tensors = {
        f"{module}.weight_packed": pack(codes, num_bits),
        f"{module}.weight_scale": scales,
        f"{module}.weight_shape": torch.tensor(weight.shape),
    }
    if has_zeros:
        tensors[f"{module}.weight_zero_point"] = pack(zeros.T, num_bits).T.contiguous()
    each = spread(scales, (1, size), weight.shape)
    return Stored(tensors, (codes - spread(zeros, (1, size), weight.shape)) * each)


def store_gptq(
    module: str, weight: torch.Tensor, *, num_bits: int, zero_offset: int, has_order: bool
) -> Stored:
    """With an order the columns of a group are anywhere."""
    num_columns = weight.shape[1]
    order = torch.arange(num_columns)
    if has_order:
        order = torch.randperm(num_columns, generator=torch.Generator().manual_seed(5))
    groups = torch.empty(num_columns, dtype=torch.int32)
    groups[order] = (torch.arange(num_columns) // GROUP).to(torch.int32)
    scales, ordered, zeros = _asymmetric(weight[:, order], GROUP, num_bits)
    scales, codes = scales.half(), torch.empty_like(ordered)
    codes[:, order] = ordered
    stored_zeros = (zeros - zero_offset).to(torch.int64) & ((1 << num_bits) - 1)
    tensors = {
        f"{module}.qweight": pack(codes, num_bits).T.contiguous(),
        f"{module}.qzeros": pack(stored_zeros.T, num_bits),
        f"{module}.scales": scales.T.contiguous(),
        f"{module}.g_idx": groups,
    }
    idx = groups.long()
    return Stored(tensors, (codes - zeros[:, idx]) * scales.float()[:, idx])


def store_awq(module: str, weight: torch.Tensor) -> Stored:
    scales, codes, zeros = _asymmetric(weight, GROUP, 4)
    scales = scales.half()
    tensors = {
        f"{module}.qweight": pack(_awq_order(codes.T), 4),
        f"{module}.qzeros": pack(_awq_order(zeros.T), 4),
        f"{module}.scales": scales.T.contiguous(),
    }
    each = spread(scales, (1, GROUP), weight.shape)
    return Stored(tensors, (codes - spread(zeros, (1, GROUP), weight.shape)) * each)


def e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """The nearest of the sixteen."""
    book = torch.tensor(E2M1)
    codes = (values.abs().unsqueeze(-1) - book).abs().argmin(-1)
    return codes + 8 * (values < 0)


def e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    return torch.tensor(E2M1 + [-each for each in E2M1])[codes]


def store_nvfp4(module: str, weight: torch.Tensor, *, is_modelopt: bool) -> Stored:
    """ModelOpt multiplies by the tensor's own scale, compressed-tensors divides by it."""
    whole = (448.0 * 6.0 / weight.abs().max()).float()
    scales = (largest(weight, (1, 16)) / 6.0 * whole).to(torch.float8_e4m3fn)
    known = 1.0 / whole if is_modelopt else whole
    each_block = scales.float() * known if is_modelopt else scales.float() / known
    each = spread(each_block, (1, 16), weight.shape)
    codes = e2m1_codes(weight / each)
    names = (
        ("weight", "weight_scale_2") if is_modelopt else ("weight_packed", "weight_global_scale")
    )
    tensors = {
        f"{module}.{names[0]}": pack_bytes(codes),
        f"{module}.weight_scale": scales,
        f"{module}.{names[1]}": known.reshape(() if is_modelopt else (1,)),
        f"{module}.input_scale": torch.ones(()),
    }
    return Stored(tensors, e2m1_values(codes) * each)


def store_mxfp4(module: str, weight: torch.Tensor) -> Stored:
    exponents = torch.floor(torch.log2(largest(weight, (1, 32)))) - 2
    each = spread(2.0**exponents, (1, 32), weight.shape)
    codes = e2m1_codes(weight / each)
    tensors = {
        f"{module}.weight_packed": pack_bytes(codes),
        f"{module}.weight_scale": (exponents + 127).to(torch.uint8),
    }
    return Stored(tensors, e2m1_values(codes) * each)


def nf4_book() -> torch.Tensor:
    """Of the paper: sixteen quantiles of the normal distribution, as bitsandbytes prints them."""
    return torch.tensor(
        [
            *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
            *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
            *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
            *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
        ]
    )


def store_nf4(module: str, weight: torch.Tensor, *, is_double: bool) -> Stored:
    """Blocks of 64 over all values in a row, the second value of a byte in its lower half."""
    flat, book = weight.flatten(), nf4_book()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % 64)).view(-1, 64)
    maxima = padded.abs().amax(1)
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "bfloat16",
        "shape": list(weight.shape),
    }
    nested: Tensors = {}
    stored_maxima = maxima
    if is_double:
        nested_book = torch.linspace(-1, 1, 256)
        offset = float(maxima.mean())
        nested_maxima = torch.stack([each.abs().max() for each in (maxima - offset).split(256)])
        each_nested = nested_maxima.repeat_interleave(256)[: len(maxima)]
        ratio = (maxima - offset) / each_nested
        stored_maxima = (ratio[:, None] - nested_book).abs().argmin(1).to(torch.uint8)
        maxima = nested_book[stored_maxima.long()] * each_nested + offset
        nested = {
            f"{module}.weight.nested_absmax": nested_maxima,
            f"{module}.weight.nested_quant_map": nested_book,
        }
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    each = maxima.repeat_interleave(64)[: len(flat)]
    codes = ((flat / each)[:, None] - book).abs().argmin(1)
    packed = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8).view(-1, 1)
    tensors = nested | {
        f"{module}.weight": packed,
        f"{module}.weight.absmax": stored_maxima,
        f"{module}.weight.quant_map": book,
        f"{module}.weight.quant_state.bitsandbytes__nf4": torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        ),
    }
    return Stored(tensors, (book[codes] * each).view(weight.shape))


def store_llm_int8(module: str, weight: torch.Tensor) -> Stored:
    maxima = weight.abs().amax(1)
    codes = (weight / maxima[:, None] * 127).round().to(torch.int8)
    tensors = {
        f"{module}.weight": codes,
        f"{module}.SCB": maxima,
        f"{module}.weight_format": torch.zeros((), dtype=torch.uint8),
    }
    return Stored(tensors, codes.float() * (maxima / 127)[:, None])


def compressed(stored_as: str, **weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _gptq(bits: int, version: str, *, has_order: bool) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP,
        "desc_act": has_order,
        "sym": False,
        "checkpoint_format": version,
        "damp_percent": 0.1,
    }


def _bytes(dtype: torch.dtype, block: tuple[int, int], scale: str = "weight_scale") -> Store:
    return functools.partial(store_bytes, dtype=dtype, block=block, scale=scale)


FP8 = torch.float8_e4m3fn
KINDS: dict[str, Kind] = {
    "int8 by channel": Kind(
        compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True),
        _bytes(torch.int8, (1, 0)),
        largest_error=0.01,
    ),
    "int8 with zeros": Kind(
        compressed("int-quantized", num_bits=8, type="int", group_size=GROUP, symmetric=False),
        store_int8_with_zeros,
        largest_error=0.01,
    ),
    "packed int8": Kind(
        compressed("pack-quantized", num_bits=8, type="int", strategy="channel"),
        functools.partial(store_packed, num_bits=8, has_zeros=False, group=0),
        largest_error=0.01,
    ),
    "packed int4": Kind(
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP),
        functools.partial(store_packed, num_bits=4, has_zeros=False),
    ),
    "packed int4 with zeros": Kind(
        compressed(
            "pack-quantized",
            num_bits=4,
            type="int",
            strategy="group",
            group_size=GROUP,
            symmetric=False,
        ),
        functools.partial(store_packed, num_bits=4, has_zeros=True),
    ),
    "gptq": Kind(
        _gptq(4, "gptq", has_order=False),
        functools.partial(store_gptq, num_bits=4, zero_offset=1, has_order=False),
    ),
    "gptq in order of activations": Kind(
        _gptq(4, "gptq", has_order=True),
        functools.partial(store_gptq, num_bits=4, zero_offset=1, has_order=True),
    ),
    "gptq of version 2 in eight bits": Kind(
        _gptq(8, "gptq_v2", has_order=True),
        functools.partial(store_gptq, num_bits=8, zero_offset=0, has_order=True),
        largest_error=0.01,
    ),
    "awq": Kind(
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": None,
        },
        store_awq,
    ),
    "auto-round as gptq": Kind(
        {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": GROUP,
            "sym": False,
            "data_type": "int",
            "packing_format": "auto_round:auto_gptq",
            "autoround_version": "0.9.1",
            "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}},
        },
        functools.partial(store_gptq, num_bits=4, zero_offset=1, has_order=False),
    ),
    "fp8 by tensor": Kind(
        {"quant_method": "fp8", "activation_scheme": "static"}, _bytes(FP8, (0, 0))
    ),
    "fp8 in blocks": Kind(
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
        },
        _bytes(FP8, BLOCK, "weight_scale_inv"),
    ),
    "fp8 of fbgemm": Kind({"quant_method": "fbgemm_fp8"}, _bytes(FP8, (1, 0))),
    "fp8 of compressed-tensors": Kind(
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        _bytes(FP8, (1, 0)),
    ),
    "fp8 in blocks of compressed-tensors": Kind(
        compressed(
            "float-quantized",
            num_bits=8,
            type="float",
            strategy="block",
            block_structure=list(BLOCK),
        ),
        _bytes(FP8, BLOCK),
    ),
    "fp8 of modelopt": Kind(
        {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        _bytes(FP8, (0, 0)),
        name="hf_quant_config.json",
    ),
    "nvfp4 of modelopt": Kind(
        {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]},
        functools.partial(store_nvfp4, is_modelopt=True),
        name="hf_quant_config.json",
        largest_error=0.2,
    ),
    "nvfp4 of compressed-tensors": Kind(
        compressed(
            "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16
        ),
        functools.partial(store_nvfp4, is_modelopt=False),
        name="compression_config",
        largest_error=0.2,
    ),
    "mxfp4": Kind(
        compressed(
            "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32
        ),
        store_mxfp4,
        largest_error=0.3,
    ),
    "nf4": Kind(
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        functools.partial(store_nf4, is_double=False),
        largest_error=0.2,
    ),
    "nf4 with double quantisation": Kind(
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "_load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": "bfloat16",
        },
        functools.partial(store_nf4, is_double=True),
        largest_error=0.2,
    ),
    "llm.int8()": Kind(
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0},
        store_llm_int8,
        largest_error=0.01,
    ),
}


def _asymmetric(
    weight: torch.Tensor, group: int, num_bits: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales, codes and zero points; codes in float32, the scales exact in bfloat16 and float16."""
    most = (1 << num_bits) - 1
    parts = weight.split(group, dim=1)
    low = torch.stack([part.amin(1).clamp(max=0) for part in parts], dim=1)
    high = torch.stack([part.amax(1).clamp(min=0) for part in parts], dim=1)
    scales = ((high - low) / most).to(torch.bfloat16)
    zeros = (-low / scales.float()).round().clamp(0, most)
    ratio = weight / spread(scales, (1, group), weight.shape)
    codes = (ratio + spread(zeros, (1, group), weight.shape)).round().clamp(0, most)
    return scales, codes, zeros


def _awq_order(values: torch.Tensor) -> torch.Tensor:
    """[n, 8 * m], in the order in which a word's places are filled."""
    return values.reshape(len(values), -1, 8)[..., AWQ_ORDER].flatten(1)
