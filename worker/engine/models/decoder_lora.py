"""Which projection of the fused decoder a module of an adapter belongs to."""

from __future__ import annotations

import re
from typing import NamedTuple

from shared.errors import ConfigError
from worker.engine.layers.linear import Linears
from worker.engine.lora.lora_projection import LoraProjection, LoraSlice
from worker.engine.lora.lora_weights import LoraPair, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig

QKV, OUTPUT, GATE_UP, DOWN = "qkv", "output", "gate_up", "down"

_MODULE = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)")


class _Part(NamedTuple):
    block: str
    out_features: int


class _Shape(NamedTuple):
    in_features: int
    parts: dict[str, _Part]  # by module, in the order in which they are joined


def projection_name(layer_id: int, projection: str) -> str:
    """By which a layer finds what an adapter adds to one of its four projections."""
    return f"{layer_id}.{projection}"


def decoder_projections(
    config: DecoderConfig, weights: LoraWeights, linears: Linears
) -> dict[str, LoraProjection]:
    """Raises ConfigError for a module that the decoder does not have, or has in another shape."""
    shapes = _shapes(config)
    by_layer: dict[int, dict[str, LoraPair]] = {}
    for name, pair in weights.items():
        match = _MODULE.fullmatch(name)
        layer_id = int(match[1]) if match else -1
        module = match[3] if match else ""
        shape = next((each for each in shapes.values() if module in each.parts), None)
        if match is None or shape is None or match[2] != shape.parts[module].block:
            raise ConfigError(f"an adapter on {name!r} is not supported")
        if layer_id >= config.num_layers:
            raise ConfigError(
                f"the adapter is for {name!r}, the model has {config.num_layers} layers"
            )
        check_pair(name, pair, shape.in_features, shape.parts[module].out_features)
        by_layer.setdefault(layer_id, {})[module] = pair
    return {
        projection_name(layer_id, projection): LoraProjection(_slices(shape, pairs), linears)
        for layer_id, pairs in by_layer.items()
        for projection, shape in shapes.items()
        if pairs.keys() & shape.parts.keys()
    }


def check_pair(name: str, pair: LoraPair, in_features: int, out_features: int) -> None:
    """Raises ConfigError when it does not fit the module."""
    found = pair.down.shape[1], pair.up.shape[0]
    if found != (in_features, out_features):
        raise ConfigError(
            f"the adapter's {name!r} goes from {found[0]} to {found[1]} values, the model's from "
            f"{in_features} to {out_features}"
        )


def _slices(shape: _Shape, pairs: dict[str, LoraPair]) -> list[LoraSlice]:
    slices, start = [], 0
    for module, part in shape.parts.items():
        slices.append(LoraSlice(start, start + part.out_features, pairs.get(module)))
        start += part.out_features
    return slices


def _shapes(config: DecoderConfig) -> dict[str, _Shape]:
    hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
    attention_size, kv_size = (
        num_heads * config.head_dim for num_heads in (config.num_heads, config.num_kv_heads)
    )
    qkv = {"q_proj": attention_size, "k_proj": kv_size, "v_proj": kv_size}
    gate_up = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
    return {
        QKV: _Shape(hidden_size, _parts("self_attn", qkv)),
        OUTPUT: _Shape(attention_size, _parts("self_attn", {"o_proj": hidden_size})),
        GATE_UP: _Shape(hidden_size, _parts("mlp", gate_up)),
        DOWN: _Shape(intermediate_size, _parts("mlp", {"down_proj": hidden_size})),
    }


def _parts(block: str, sizes: dict[str, int]) -> dict[str, _Part]:
    return {module: _Part(block, size) for module, size in sizes.items()}
