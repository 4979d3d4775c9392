"""Where the modules of an adapter go: projections of the fused decoder, or transformers' layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn import Linear, Module

from shared.errors import ConfigError
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.layers.linear import Linears, PlainLinears
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.lora.lora_projection import LoraPair, LoraProjection, LoraSlice, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import stored_heads, stored_sizes
from worker.engine.models.renaming_reader import renamed
from worker.engine.models.rotary import head_order

QKV, OUTPUT, GATE_UP, DOWN = "qkv", "output", "gate_up", "down"


class _Part(NamedTuple):
    block: str
    out_features: int


class _Shape(NamedTuple):
    in_features: int
    parts: dict[str, _Part]  # by module, in the order in which they are joined
    pieces: tuple[int, ...]  # output features of what is multiplied together, stored as one or not


def projection_name(layer_id: int, projection: str) -> str:
    """The name by which a layer finds what an adapter adds to one of its four projections."""
    return f"{layer_id}.{projection}"


def decoder_projections(
    config: DecoderConfig, weights: LoraWeights, linears: Linears
) -> dict[str, LoraProjection]:
    """Raises ConfigError for a module that the decoder does not have, or has in another shape, and
    for a decoder that takes none.
    """
    return {
        projection_name(layer_id, projection): LoraProjection(slices, linears)
        for (layer_id, projection), slices in decoder_slices(config, weights).items()
    }


def decoder_slices(
    config: DecoderConfig, weights: LoraWeights
) -> dict[tuple[int, str], list[LoraSlice]]:
    """The slices by layer and projection. Raises ConfigError as `decoder_projections` does."""
    _check_projections(config)
    slices = {}
    unknown = dict(weights)
    for layer_id in range(config.num_layers):
        for projection, shape in _shapes(config, layer_id).items():
            pairs = {}
            for module, (block, out_features) in shape.parts.items():
                name = renamed(f"model.layers.{layer_id}.{block}.{module}.", config.stored_names)
                pair = unknown.pop(name := name.removesuffix("."), None)
                if pair is not None:
                    check_pair(name, pair, shape.in_features, out_features)
                    pairs[module] = pair
            if pairs:
                made = _slices(_by_part(pairs, shape, projection, config), shape)
                slices[layer_id, projection] = _ordered(made, projection, config)
    if unknown:
        name = next(iter(unknown))
        raise ConfigError(
            f"an adapter on {name!r} is not supported: the model has {config.num_layers} layers, "
            f"each with {', '.join(_names(config))}"
        )
    return slices


def _check_projections(config: DecoderConfig) -> None:
    """Raises ConfigError."""
    for is_so, told in (
        (config.recurrent, "its layers keep a state beside keys and values"),
        (config.latent, "its keys and values are made of a latent"),
        (config.has_several_shapes, "its layers differ in the shapes of projections"),
        (config.layer_inputs, "its layers have inputs beside the stream"),
    ):
        if is_so:
            raise ConfigError(f"adapters are not supported with {config.architecture}: {told}")


def _names(config: DecoderConfig) -> list[str]:
    """The names of the modules of its first layer that adapters may be on."""
    return [module for shape in _shapes(config, 0).values() for module in shape.parts]


def check_pair(name: str, pair: LoraPair, in_features: int, out_features: int) -> None:
    """Raises ConfigError when it does not fit the module."""
    found = pair.down.shape[1], pair.up.shape[0]
    if found != (in_features, out_features):
        raise ConfigError(
            f"the adapter's {name!r} goes from {found[0]} to {found[1]} values, the model's from "
            f"{in_features} to {out_features}"
        )


def _by_part(
    pairs: dict[str, LoraPair], shape: _Shape, projection: str, config: DecoderConfig
) -> list[LoraPair | None]:
    """In the order of the parts; where the only one has its heads in another order, in ours."""
    if projection != QKV or not config.is_qkv_by_head:
        return [pairs.get(module) for module in shape.parts]
    ((down, up),) = pairs.values()
    heads = up.view(-1, config.head_dim, up.shape[1])
    return [
        LoraPair(down, heads[stored_heads(config, config.attention_layers[0])].reshape(up.shape))
    ]


def _slices(by_part: list[LoraPair | None], shape: _Shape) -> list[LoraSlice]:
    """One for each piece."""
    by_piece = by_part
    if len(shape.parts) < len(shape.pieces):
        (pair,) = by_part
        assert pair is not None, "it is the only one"
        ups = torch.split(pair.up, list(shape.pieces))
        by_piece = [LoraPair(pair.down, each) for each in ups]
    slices, start = [], 0
    for size, each in zip(shape.pieces, by_piece, strict=True):
        slices.append(LoraSlice(start, start + size, each))
        start += size
    return slices


def _ordered(slices: list[LoraSlice], projection: str, config: DecoderConfig) -> list[LoraSlice]:
    """The slices with the values of each head of queries and keys in the order of rotation."""
    order = head_order(config.rope, config.head_dim)
    if projection != QKV or order is None:
        return slices
    queries, keys, *others = slices
    return [*(_with_order(each, order) for each in (queries, keys)), *others]


def _with_order(each: LoraSlice, order: torch.Tensor) -> LoraSlice:
    if each.pair is None:
        return each
    down, up = each.pair
    heads = up.view(-1, len(order), up.shape[1])
    return each._replace(pair=LoraPair(down, heads[:, order].reshape(up.shape)))


def _shapes(config: DecoderConfig, layer_id: int) -> dict[str, _Shape]:
    """The shapes of a layer; of experts none but the shared one, which sees all tokens."""
    hidden_size = config.hidden_size
    attention_size, kv_size = (
        num_heads * config.head_dim for num_heads in (config.num_heads, config.num_kv_heads)
    )
    qkv: tuple[int, ...] = (attention_size, kv_size, kv_size)
    if config.has_gates_apart:
        qkv = (*qkv, attention_size)
    qkv_parts = stored_sizes(config.stored_qkv, qkv)
    output = {"o_proj": hidden_size}
    shapes = {
        QKV: _Shape(hidden_size, _parts("self_attn", qkv_parts), qkv),
        OUTPUT: _Shape(attention_size, _parts("self_attn", output), (hidden_size,)),
    }
    layer_mlp = config.mlp_of(layer_id)
    if layer_mlp is None:
        return shapes
    mlp, intermediate_size, block, _ = layer_mlp
    gate_up = mlp.up_sizes(intermediate_size)
    return shapes | {
        GATE_UP: _Shape(hidden_size, _parts(block, stored_sizes(mlp.up, gate_up)), gate_up),
        DOWN: _Shape(intermediate_size, _parts(block, {mlp.down: hidden_size}), (hidden_size,)),
    }


def _parts(block: str, sizes: dict[str, int]) -> dict[str, _Part]:
    return {module: _Part(block, size) for module, size in sizes.items()}


class ModuleLoras:
    """Adapters on the linear layers in the body of a model that transformers computes.

    Steps without an adapter know nothing of it.
    """

    def __init__(self, body_name: str, body: Module) -> None:
        self._modules = {
            f"{body_name}.{name}": module
            for name, module in body.named_modules()
            # An expert sees some of the tokens: a row's number does not say whose it is.
            if type(module) is Linear and ".experts." not in name
        }
        self._in_use: set[str] = set()  # by an adapter that was loaded at any time

    def projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError for what is no linear layer, or one of another shape."""
        projections = {}
        for name, pair in weights.items():
            module = self._modules.get(name)
            if module is None:
                raise ConfigError(f"an adapter on {name!r} is not supported")
            check_pair(name, pair, module.in_features, module.out_features)
            linears = _linears_beside(module.weight)
            projections[name] = LoraProjection([LoraSlice(0, module.out_features, pair)], linears)
        self._in_use |= projections.keys()
        return projections

    @contextmanager
    def applied(self, loras: LoraBatch) -> Iterator[None]:
        """While it lasts, the modules add what the step's adapters add."""
        handles = [
            self._modules[name].register_forward_hook(_Hook(name, loras)) for name in self._in_use
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _linears_beside(weight: torch.Tensor) -> Linears:
    """Linear layers of its device and format."""
    return choose_linears(weight.dtype) if weight.device.type == "cpu" else PlainLinears()


class _Hook:
    """What is added at one module in one step."""

    def __init__(self, name: str, loras: LoraBatch) -> None:
        self._name = name
        self._loras = loras

    def __call__(
        self, module: Module, inputs: tuple[Any, ...], output: torch.Tensor
    ) -> torch.Tensor:
        (x,) = inputs
        self._loras.add(self._name, x.flatten(0, -2), output.view(-1, output.shape[-1]))
        return output
