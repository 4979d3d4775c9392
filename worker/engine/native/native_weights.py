"""A decoder's weights as the C++ decoder multiplies them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Self, TypeVar

import msgspec

from worker.engine.formats.scaled_weight import InputCodes
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import (
    AttentionWeights,
    DecoderWeights,
    LayerWeights,
    MlpWeights,
    Projection,
)
from worker.engine.models.loader import CodeReader
from worker.engine.native.coded_layout import INTEGER_LAYOUTS
from worker.engine.native.native_library import LayerStruct, LinearStruct, NativeLibrary
from worker.engine.native.packed_weights import PackedWeights
from worker.engine.native.weight_memory import HeapMemory, WeightMemory

S = TypeVar("S", bound=ctypes.Structure)


class _Contents(msgspec.Struct, array_like=True):
    """`PlacedWeights` as bytes: structs as they lie in memory, for code of the same sources."""

    layers: bytes
    embeddings: bytes
    lm_head: bytes
    final_norm: int
    coded_share: float
    integer_share: float
    num_bytes: int


class PlacedWeights(NamedTuple):
    """What lies where: the pointers are places of one `WeightMemory`."""

    layers: list[LayerStruct]  # without their parts of the KV pool
    embeddings: LinearStruct
    lm_head: LinearStruct
    final_norm: int
    coded_share: float  # of the layers: few checkpoints quantise more
    integer_share: float  # the same: those whose inputs are rounded to integers
    num_bytes: int

    @classmethod
    def read(
        cls,
        library: NativeLibrary,
        config: DecoderConfig,
        checkpoint: CodeReader,
        memory: WeightMemory,
        inputs: InputCodes | None = None,
    ) -> Self:
        """Reads a checkpoint and packs it: in bfloat16, and quantised weights as they are stored.
        `inputs`: of weights whose format does not tell theirs.

        Raises ConfigError, and what `memory` does.
        """
        packed = PackedWeights(library, memory, inputs)
        weights = DecoderWeights(config, checkpoint, codes=checkpoint)
        layers = [
            _layer(
                packed,
                weights.layer(layer_id),
                weights.attention(layer_id),
                weights.mlp(layer_id, mlp),
                attention,
            )
            for layer_id, attention in enumerate(config.attention_layers)
            if (mlp := config.mlp_of(layer_id)) is not None
        ]
        coded_share, integer_share = packed.coded_share, packed.integer_share
        final_norm = packed.floats(weights.norm().weight)
        embeddings = packed.linear(Projection(weights.stored_embeddings(), None))
        head = weights.stored_head()
        lm_head = embeddings if head is None else packed.linear(Projection(head, None))
        if packed.has_integers:
            for linear in (lm_head, *(each for layer in layers for each in _linears(layer))):
                linear.by_vectors = linear.layout not in INTEGER_LAYOUTS
        return cls(
            layers,
            embeddings,
            lm_head,
            final_norm,
            coded_share,
            integer_share,
            packed.num_bytes,
        )

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _Contents(
                b"".join(map(bytes, self.layers)),
                bytes(self.embeddings),
                bytes(self.lm_head),
                self.final_norm,
                self.coded_share,
                self.integer_share,
                self.num_bytes,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, address: int) -> Self:
        """Of what lies in a file that is mapped at `address`."""
        contents = msgspec.msgpack.decode(data, type=_Contents)
        size = ctypes.sizeof(LayerStruct)
        layers = [
            LayerStruct.from_buffer_copy(contents.layers, at)
            for at in range(0, len(contents.layers), size)
        ]
        return cls(
            [_moved(layer, address) for layer in layers],
            _moved(LinearStruct.from_buffer_copy(contents.embeddings), address),
            _moved(LinearStruct.from_buffer_copy(contents.lm_head), address),
            contents.final_norm + address,
            contents.coded_share,
            contents.integer_share,
            contents.num_bytes,
        )


class NativeWeights(NamedTuple):
    """In memory, for as long as this lives."""

    library: NativeLibrary
    config: DecoderConfig
    placed: PlacedWeights  # at addresses
    memory: object  # owns what lies there

    @classmethod
    def read(
        cls,
        library: NativeLibrary,
        config: DecoderConfig,
        checkpoint: CodeReader,
        inputs: InputCodes | None = None,
    ) -> Self:
        """Into memory of this process. Raises ConfigError."""
        memory = HeapMemory(library)
        placed = PlacedWeights.read(library, config, checkpoint, memory, inputs)
        return cls(library, config, placed, memory)


def _layer(
    packed: PackedWeights,
    weights: LayerWeights,
    attention_weights: AttentionWeights,
    mlp: MlpWeights,
    attention: AttentionLayer,
) -> LayerStruct:
    norm, before_mlp = attention_weights.head_norm, weights.before_mlp
    assert weights.before_attention is not None, "it is a layer of Llama's kind"
    assert before_mlp is not None, "so is this"
    return LayerStruct(
        attention_norm=packed.floats(weights.before_attention.weight),
        qkv=packed.linear(attention_weights.qkv),
        query_norm=None if norm is None else packed.floats(norm[0]),
        key_norm=None if norm is None else packed.floats(norm[-1]),
        output=packed.linear(attention_weights.output),
        mlp_norm=packed.floats(before_mlp.weight),
        gate_up=packed.linear(mlp.gate_up, interleaved=True),
        down=packed.linear(mlp.down),
        window=attention.window or 0,
        attention_scale=attention.scale,
    )


def _linears(layer: LayerStruct) -> tuple[LinearStruct, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _moved(struct: S, distance: int) -> S:
    """With all its pointers so much further; null stays null."""
    for name, kind, *_ in struct._fields_:
        value = getattr(struct, name)
        if kind is ctypes.c_void_p and value is not None:
            setattr(struct, name, value + distance)
        elif isinstance(value, ctypes.Structure):
            _moved(value, distance)  # lies within ours
    return struct
