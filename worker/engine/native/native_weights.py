"""A decoder's weights as the C++ decoder multiplies them."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple, Self, TypeVar

import msgspec

from worker.engine.formats.scaled_weight import InputCodes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights, Projection
from worker.engine.models.experts.coded_experts import ExpertReader, gate_of
from worker.engine.models.experts.expert_router import read_router, read_shared_gate
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.loader import CodeReader
from worker.engine.models.model_loading import expert_reader
from worker.engine.models.renaming_reader import RenamingCodeReader
from worker.engine.native.coded_layout import INTEGER_LAYOUTS
from worker.engine.native.native_experts import experts_struct, pack_experts, router_struct
from worker.engine.native.native_library import LayerStruct, LinearStruct, NativeLibrary
from worker.engine.native.packed_weights import PackedWeights
from worker.engine.native.weight_memory import HeapMemory, WeightMemory

S = TypeVar("S", bound=ctypes.Structure)

_LOG2_E = 1.0 / math.log(2.0)  # scores are powers of two


class _Contents(msgspec.Struct, array_like=True):
    """`PlacedWeights` as bytes: structs as they lie in memory, for code of the same sources."""

    layers: bytes
    experts: bytes
    embeddings: bytes
    lm_head: bytes
    final_norm: int
    coded_share: float
    integer_share: float
    num_bytes: int


class PlacedWeights(NamedTuple):
    """What lies where: the pointers are places of one `WeightMemory`."""

    layers: list[LayerStruct]  # without their parts of the KV pool, and of `experts`
    experts: list[LinearStruct]  # of each layer that has some: all that go up, all that go down
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
        final_norm = packed.floats(weights.norm().weight)
        embeddings = packed.linear(Projection(weights.stored_embeddings(), None))
        head = weights.stored_head()
        lm_head = embeddings if head is None else packed.linear(Projection(head, None))
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
                self.final_norm,
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
        before_attention, before_mlp = norms.before_attention, norms.before_mlp
        assert before_attention is not None, "it is a layer of Llama's kind"
        assert before_mlp is not None, "so is this"
        attention = config.attention_layers[layer_id]
        layer = LayerStruct(
            attention_norm=packed.floats(before_attention.weight),
            qkv=packed.linear(weights.qkv),
            output=packed.linear(weights.output),
            mlp_norm=packed.floats(before_mlp.weight),
            window=attention.window or 0,
            attention_scale=attention.scale,
        )
        if (norm := weights.head_norm) is not None:
            layer.query_norm = packed.floats(norm[: attention.num_heads])
            layer.key_norm = packed.floats(norm[attention.num_heads :])
        if config.has_sinks:
            layer.sinks = packed.floats(self._weights.sinks(layer_id) * _LOG2_E)
        if (mlp := config.mlp_of(layer_id)) is not None:
            mlp_weights = self._weights.mlp(layer_id, mlp)
            layer.gate_up = packed.linear(mlp_weights.gate_up, interleaved=True)
            layer.down = packed.linear(mlp_weights.down)
        experts = config.experts[layer_id] if config.experts else None
        if experts is not None:
            self._read_experts(experts, layer_id, layer)
        return layer

    def _read_experts(self, config: ExpertsConfig, layer_id: int, layer: LayerStruct) -> None:
        reader, prefix = self._weights.reader, f"model.layers.{layer_id}.mlp."
        router = read_router(config, reader, prefix)
        gate = read_shared_gate(config, reader, prefix)
        layer.router = router_struct(self._packed, config, router, gate)
        layer.experts = experts_struct(config.num_experts, gate_of(config))
        experts = self._expert_reader.read(config, prefix, layer_id)
        for linears in pack_experts(self._packed, experts):
            self.experts += linears


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
