"""A decoder's weights as the C++ decoder multiplies them."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple, Self, TypeVar

import msgspec
import torch

from worker.engine.formats.scaled_weight import InputCodes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import AttentionWeights, DecoderWeights, Projection
from worker.engine.models.experts.coded_experts import ExpertReader, gate_of
from worker.engine.models.experts.expert_router import read_router, read_shared_gate
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_inputs import read_layer_scale
from worker.engine.models.loader import CodeReader
from worker.engine.models.model_loading import expert_reader
from worker.engine.models.norms import NormWeights
from worker.engine.models.renaming_reader import RenamingCodeReader
from worker.engine.native.coded_layout import INTEGER_LAYOUTS
from worker.engine.native.native_experts import (
    experts_struct,
    inner_struct,
    pack_experts,
    router_struct,
)
from worker.engine.native.native_library import (
    LayerStruct,
    LinearStruct,
    NativeLibrary,
    NormStruct,
)
from worker.engine.native.packed_weights import PackedWeights
from worker.engine.native.weight_memory import HeapMemory, WeightMemory

S = TypeVar("S", bound=ctypes.Structure)

_LOG2_E = 1.0 / math.log(2.0)  # scores are powers of two
_FLOAT_BYTES = 4


class _Contents(msgspec.Struct, array_like=True):
    """`PlacedWeights` as bytes: structs as they lie in memory, for code of the same sources."""

    layers: bytes
    experts: bytes
    embeddings: bytes
    lm_head: bytes
    final_norm: bytes
    positions: int | None
    coded_share: float
    integer_share: float
    num_bytes: int


class PlacedWeights(NamedTuple):
    """What lies where: the pointers are places of one `WeightMemory`."""

    layers: list[LayerStruct]  # without their parts of the KV pool, and of `experts`
    experts: list[LinearStruct]  # of each layer that has some: all that go up, all that go down
    embeddings: LinearStruct
    lm_head: LinearStruct
    final_norm: NormStruct
    positions: int | None  # [num_positions, hidden_size] float32, where it has them
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
        inputs: InputCodes | None,
        num_threads: int,
    ) -> Self:
        """Reads a checkpoint and packs it: in bfloat16, and quantised weights as they are stored.
        `inputs`: of weights whose format does not tell theirs.

        Raises ConfigError, and what `memory` does.
        """
        packed = PackedWeights(library, memory, inputs, num_threads)
        codes = RenamingCodeReader(checkpoint, config.stored_names)
        weights = DecoderWeights(config, checkpoint, codes)
        reader = _LayerReader(config, weights, expert_reader(config, checkpoint), packed)
        layers = [reader.read(layer_id) for layer_id in range(config.num_layers)]
        coded_share, integer_share = packed.coded_share, packed.integer_share
        if config.made_format is not None and config.num_expert_values:
            coded_share = packed.num_coded / config.num_expert_values
        final_norm = packed_norm(packed, config, weights.norm())
        positions = None
        if config.position_offset is not None:
            positions = packed.floats(weights.positions()[config.position_offset :])
        embeddings = packed.linear(Projection(weights.stored_embeddings(), None))
        head = weights.stored_head()
        lm_head = embeddings if head is None else packed.linear(Projection(head, None))
        if (bias := weights.head_bias()) is not None:
            lm_head = packed.with_bias(lm_head, bias)
        if packed.has_integers:
            of_layers = (each for layer in layers for each in _linears(layer))
            for linear in (lm_head, *of_layers, *reader.experts):
                linear.by_vectors = linear.layout not in INTEGER_LAYOUTS
        return cls(
            layers,
            reader.experts,
            embeddings,
            lm_head,
            final_norm,
            positions,
            coded_share,
            integer_share,
            packed.num_bytes,
        )

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _Contents(
                b"".join(map(bytes, self.layers)),
                b"".join(map(bytes, self.experts)),
                bytes(self.embeddings),
                bytes(self.lm_head),
                bytes(self.final_norm),
                self.positions,
                self.coded_share,
                self.integer_share,
                self.num_bytes,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, address: int) -> Self:
        """The weights of what lies in a file that is mapped at `address`."""
        contents = msgspec.msgpack.decode(data, type=_Contents)
        return cls(
            [_moved(each, address) for each in _structs(LayerStruct, contents.layers)],
            [_moved(each, address) for each in _structs(LinearStruct, contents.experts)],
            _moved(LinearStruct.from_buffer_copy(contents.embeddings), address),
            _moved(LinearStruct.from_buffer_copy(contents.lm_head), address),
            _moved(NormStruct.from_buffer_copy(contents.final_norm), address),
            None if contents.positions is None else contents.positions + address,
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
        inputs: InputCodes | None,
        num_threads: int,
    ) -> Self:
        """Into memory of this process. Raises ConfigError."""
        memory = HeapMemory(library)
        placed = PlacedWeights.read(library, config, checkpoint, memory, inputs, num_threads)
        return cls(library, config, placed, memory)


class _LayerReader:
    """Packs a decoder's layers, one after the other."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        expert_reader: ExpertReader,
        packed: PackedWeights,
    ) -> None:
        self.experts: list[LinearStruct] = []  # of the layers so far, as `PlacedWeights` has them
        self._config = config
        self._weights = weights
        self._expert_reader = expert_reader
        self._packed = packed

    def read(self, layer_id: int) -> LayerStruct:
        """Raises ConfigError."""
        config, packed = self._config, self._packed
        norms, weights = self._weights.layer(layer_id), self._weights.attention(layer_id)
        attention, growth = config.attention_layers[layer_id], config.query_growth
        rotates = config.layer_ropes[layer_id] is not None
        layer = LayerStruct(
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            num_kept=_num_kept(config, layer_id),
            before_attention=packed_norm(packed, config, norms.before_attention),
            qkv=packed.linear(weights.qkv),
            output=packed.linear(weights.output),
            after_attention=packed_norm(packed, config, norms.after_attention),
            before_mlp=packed_norm(packed, config, norms.before_mlp),
            after_mlp=packed_norm(packed, config, norms.after_mlp),
            window=attention.window or 0,
            chunk=attention.chunk or 0,
            is_causal=attention.is_causal,
            grows_queries=growth is not None and growth.is_of_rotated == rotates,
            has_gates=config.has_attention_gate,
            attention_scale=attention.scale,
            soft_cap=attention.soft_cap or 0.0,
            stream_scale=1.0,
        )
        if config.has_layer_scales:
            layer.stream_scale = float(read_layer_scale(self._weights.reader, layer_id))
        self._read_head_norms(layer_id, weights, layer)
        if config.has_sinks and not (config.has_sinks_in_windows_alone and not layer.window):
            layer.sinks = packed.floats(self._weights.sinks(layer_id) * _LOG2_E)
        if (mlp := config.mlp_of(layer_id)) is not None:
            mlp_weights = self._weights.mlp(layer_id, mlp)
            layer.gate_up = packed.linear(mlp_weights.gate_up, interleaved=mlp.config.is_gated)
            layer.down = packed.linear(mlp_weights.down)
            layer.inner = inner_struct(mlp.config)
        experts = config.experts[layer_id] if config.experts else None
        if experts is not None:
            self._read_experts(experts, layer_id, layer)
        return layer

    def _read_head_norms(
        self, layer_id: int, weights: AttentionWeights, layer: LayerStruct
    ) -> None:
        config, num_heads, num_kv_heads = self._config, layer.num_heads, layer.num_kv_heads
        norm = config.head_norm
        if norm is None or (norm.is_of_rotated and config.layer_ropes[layer_id] is None):
            return
        weight, bias, offset = weights.head_norm, weights.head_norm_bias, config.norm.weight_offset
        if weight is None:
            weight, offset = torch.ones(num_heads + num_kv_heads, layer.head_dim), 0.0
        whole = self._packed.floats(weight.float() + offset)
        whole_bias = None if bias is None else self._packed.floats(bias)
        layer.query_norm = NormStruct(whole, whole_bias)
        if layer.num_kept:
            start = num_heads * layer.head_dim * _FLOAT_BYTES
            bias_start = None if whole_bias is None else whole_bias + start
            layer.key_norm = NormStruct(whole + start, bias_start)
        if layer.num_kept and norm.norms_values:
            ones = torch.ones(num_kv_heads, layer.head_dim)
            layer.value_norm = NormStruct(self._packed.floats(ones))

    def _read_experts(self, config: ExpertsConfig, layer_id: int, layer: LayerStruct) -> None:
        reader, prefix = self._weights.reader, f"model.layers.{layer_id}.mlp."
        router = read_router(config, reader, prefix)
        gate = read_shared_gate(config, reader, prefix)
        layer.router = router_struct(self._packed, config, router, gate)
        layer.experts = experts_struct(config.num_experts, gate_of(config))
        experts = self._expert_reader.read(config, prefix, layer_id)
        for linears in pack_experts(self._packed, experts):
            self.experts += linears


def packed_norm(
    packed: PackedWeights, config: DecoderConfig, weights: NormWeights | None
) -> NormStruct:
    """None: there is none at this place."""
    if weights is None:
        return NormStruct()
    norm = config.norm
    weight = torch.ones(config.hidden_size)
    if norm.has_weight:
        weight = weights.weight.float() + norm.weight_offset
    bias = None if weights.bias is None else packed.floats(weights.bias)
    return NormStruct(packed.floats(weight), bias)


def _num_kept(config: DecoderConfig, layer_id: int) -> int:
    """`Kept` of decoder.cpp."""
    if config.attention_layers[layer_id].kv_layer_id is not None:
        return 0
    return 1 if config.has_keys_as_values(layer_id) else 2


def _linears(layer: LayerStruct) -> tuple[LinearStruct, ...]:
    return layer.qkv, layer.output, layer.gate_up, layer.down


def _structs(kind: type[S], data: bytes) -> list[S]:
    """That lie one after the other."""
    size = ctypes.sizeof(kind)
    return [kind.from_buffer_copy(data, at) for at in range(0, len(data), size)]


def _moved(struct: S, distance: int) -> S:
    """The same with all its pointers so much further; null stays null."""
    for name, kind, *_ in struct._fields_:
        value = getattr(struct, name)
        if kind is ctypes.c_void_p and value is not None:
            setattr(struct, name, value + distance)
        elif isinstance(value, ctypes.Structure):
            _moved(value, distance)  # lies within ours
    return struct
