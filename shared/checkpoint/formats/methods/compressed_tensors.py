"""compressed-tensors, as llm-compressor and vLLM's tools write it."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.checkpoint.formats.layouts.eight_bits import FP8, INT8, WHOLE, EightBits
from shared.checkpoint.formats.layouts.four_bit_floats import (
    MXFP4_BLOCK,
    NVFP4_BLOCK,
    Nvfp4,
    PackedMxfp4,
)
from shared.checkpoint.formats.layouts.packed_integers import PackedIntegers
from shared.checkpoint.formats.linear_format import InputRounding, LinearFormat
from shared.checkpoint.formats.methods.group_size import group_size_of
from shared.checkpoint.formats.quantization import FormatRule, Quantization, check_pattern
from shared.checkpoint.formats.section import Section

# What older versions wrote of weights that are compressed, too; uncompressed ones are in a format
# that is refused.
_STATUSES = ("compressed", "frozen")
_BYTES = ("int-quantized", "float-quantized", "naive-quantized")


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the weights of a group are quantised."""

    num_bits: int = 8
    type: str = "int"
    strategy: str | None = None
    symmetric: bool = True
    group_size: int | None = None
    block_structure: tuple[int, int] | None = None
    dynamic: bool | str | None = False
    scale_dtype: Any = None  # tensors tell their own
    zp_dtype: Any = None
    actorder: Any = None  # the order is in g_idx
    observer: Any = None
    observer_kwargs: Any = None


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Modules that are quantised in one way."""

    targets: tuple[str, ...]
    weights: Weights | None = None
    input_activations: Any = None
    output_activations: Any = None
    format: str | None = None


class _CompressedTensors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    config_groups: dict[str, Group]
    format: str = "dense"
    ignore: tuple[str, ...] | None = ()
    quantization_status: str = "compressed"
    quant_method: str = "compressed-tensors"
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None
    kv_cache_scheme: Any = None
    global_compression_ratio: Any = None
    moe_sparsity_config: Any = None
    run_compressed: Any = None
    version: Any = None


def read_compressed_tensors(section: Section) -> Quantization | None:
    """None where no weights are quantised. Raises ConfigError."""
    config = section.decode(_CompressedTensors)
    if (config.sparsity_config or {}).get("format", "dense") != "dense":
        raise section.error("a compressed sparsity_config is not supported")
    for name, value in (
        ("transform_config", (config.transform_config or {}).get("config_groups")),
        ("moe_sparsity_config", config.moe_sparsity_config),
    ):
        if value:
            raise section.error(f"{name} is not supported")
    rules = tuple(
        FormatRule(_format(section, group, group.weights, config.format), group.targets)
        for group in config.config_groups.values()
        if group.weights is not None
    )
    if not rules:
        return None
    ignore = config.ignore or ()
    for name in (*ignore, *(target for rule in rules for target in rule.targets)):
        check_pattern(section, name)
    if config.quantization_status not in _STATUSES:
        raise section.error(f"quantization_status={config.quantization_status!r} is not supported")
    return Quantization("compressed-tensors", rules, ignore)


def _format(section: Section, group: Group, weights: Weights, default: str) -> LinearFormat:
    name, inputs = group.format or default, _inputs(group.input_activations)
    if weights.dynamic:
        raise section.error("weights with dynamic scales are not supported")
    kind = weights.type, weights.num_bits
    if name in _BYTES and kind in (("int", 8), ("float", 8)):
        dtype = INT8 if weights.type == "int" else FP8
        zero = "" if weights.symmetric else "_zero_point"
        inputs = inputs if dtype == INT8 else None
        return EightBits(dtype, ("_scale",), _block(section, weights), zero, inputs)
    if name == "pack-quantized" and weights.type == "int" and weights.num_bits in (4, 8):
        rounded = None if inputs is None or inputs.is_static else inputs
        group_size = _row_group(section, weights)
        return PackedIntegers(weights.num_bits, group_size, weights.symmetric, rounded)
    if name == "nvfp4-pack-quantized" and (*kind, weights.group_size) == ("float", 4, NVFP4_BLOCK):
        return Nvfp4("_packed", "_global_scale", is_divisor=True)
    if name == "mxfp4-pack-quantized" and (*kind, weights.group_size) == ("float", 4, MXFP4_BLOCK):
        return PackedMxfp4()
    raise section.error(
        f"weights of type {weights.type} in {weights.num_bits} bits, stored as {name!r}, are not "
        "supported"
    )


def _inputs(told: Any) -> InputRounding | None:
    """None where they stay in 16 bits: they are to be in others than integers of 8 bits around
    zero, or rounded in a way that we do not know.
    """
    if not isinstance(told, dict) or not told.get("symmetric", True):
        return None
    if (told.get("type", "int"), told.get("num_bits", 8)) != ("int", 8):
        return None
    match told.get("dynamic", False), told.get("strategy"):
        case True, "token" | "tensor" | None:
            return InputRounding()
        case True, "group" if isinstance(size := told.get("group_size"), int) and size > 0:
            return InputRounding(size)
        case False, "tensor" | None:
            return InputRounding(is_static=True)
    return None


def _block(section: Section, weights: Weights) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    match _strategy(weights):
        case "tensor":
            return WHOLE, WHOLE
        case "channel":
            return 1, WHOLE
        case "group":
            return 1, _group_size(section, weights) or WHOLE
        case "block" if weights.block_structure and min(weights.block_structure) > 0:
            return weights.block_structure
    raise section.error(f"strategy={weights.strategy!r} of weights is not supported")


def _row_group(section: Section, weights: Weights) -> int | None:
    match _strategy(weights):
        case "channel":
            return None
        case "group":
            return _group_size(section, weights)
    raise section.error(f"strategy={weights.strategy!r} of packed weights is not supported")


def _group_size(section: Section, weights: Weights) -> int | None:
    return group_size_of(section, -1 if weights.group_size is None else weights.group_size)


def _strategy(weights: Weights) -> str:
    """What the format's own library takes where it is not named."""
    if weights.strategy is not None:
        return weights.strategy
    if weights.group_size is None:
        return "tensor"
    return "channel" if weights.group_size == -1 else "group"
