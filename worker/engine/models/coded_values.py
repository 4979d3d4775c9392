"""Which values of a model may be multiplied in codes, as the heads of its files tell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from shared.checkpoint.formats.quantization import Quantization
from shared.checkpoint.formats.stored_heads import StoredHeads, text_names
from shared.checkpoint.model_files import weight_files
from shared.checkpoint.stored_format import HEAD_FORMAT, MadeFormat
from shared.checkpoint.weights.checkpoint_tensors import CheckpointTensors
from shared.gguf.gguf_model import GgufModel
from shared.gguf.tensor_names import Layout, TensorSource, tensor_sources
from worker.engine.formats.made_codes import CODE_BITS, is_of_experts
from worker.engine.formats.stored.gguf_blocks import BLOCK_TYPES
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.gguf_reader import gguf_file_in
from worker.engine.models.model_config import CodedValues, ModelConfig
from worker.engine.models.stored_experts import STACKED

_TABLE, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_MATRIX_LAYOUTS = (Layout.PLAIN, Layout.PAIRED_ROWS)


class _Coded(NamedTuple):
    name: str  # of a weight, in our words
    num_values: int
    bits: float


class CodedWeights(NamedTuple):
    """What our C++ has a layout for, unless there is no library for it."""

    values: tuple[CodedValues, ...] = ()  # by their bits
    has_table: bool = False  # embeddings are among them

    @classmethod
    def of(cls, weights: Iterable[_Coded]) -> CodedWeights:
        nums: defaultdict[float, int] = defaultdict(int)
        has_table = False
        for name, num_values, bits in weights:
            nums[bits] += num_values
            has_table |= name == _TABLE
        return cls(tuple(CodedValues(num, bits) for bits, num in nums.items()), has_table)


def num_saved_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """The bytes that codes take less than the same values in `dtype`."""
    bits = 8 * dtype.itemsize
    return sum(int(num * (bits - own)) // 8 for num, own in model.coded_values)


def stored_weights(path: Path, model: ModelConfig, quantization: Quantization) -> CodedWeights:
    """The coded weights of a quantised checkpoint; without its files, all that may be coded. Raises
    ConfigError.
    """
    if weight_files(path):
        heads = CheckpointTensors.read(path)
        stored = StoredHeads.of(text_names(path, heads) or heads, quantization)
        return CodedWeights.of(_stored(model, stored))
    if quantization.code_bits is None:
        return CodedWeights()
    num_values = model.num_expert_values
    if isinstance(model, DecoderConfig):
        num_values = num_values or model.num_projection_values
    return CodedWeights((CodedValues(num_values, quantization.code_bits),))


def _stored(model: ModelConfig, stored: StoredHeads) -> Iterator[_Coded]:
    for name, weight in stored.quantized.items():
        bits, ours = weight.format.code_bits, _our_name(model, name)
        if bits is not None and ours is not None:
            yield _Coded(ours, math.prod(weight.shape), bits)


def gguf_weights(path: Path, model: ModelConfig) -> CodedWeights:
    """The coded weights of the GGUF files in a folder. Raises ConfigError."""
    if not isinstance(model, DecoderConfig):
        return CodedWeights()
    sources = tensor_sources(GgufModel.read(gguf_file_in(path)))
    return CodedWeights.of(
        each for name, source in sources.items() for each in _of_source(model, name, source)
    )


def _of_source(model: DecoderConfig, name: str, source: TensorSource) -> Iterator[_Coded]:
    is_matrix = source.layout in _MATRIX_LAYOUTS and name.endswith(".weight")
    ours = _our_name(model, name)
    if ours is None or not (is_matrix or STACKED.fullmatch(name)):
        return
    for tensor in source.tensors:
        block_type = BLOCK_TYPES.get(tensor.type.name)
        if block_type is not None:
            yield _Coded(ours, tensor.num_values, block_type.code_bits)


def made_weights(model: ModelConfig, kind: MadeFormat) -> CodedWeights:
    """The weights whose codes are made at load: in a mixture, those of its experts alone."""
    bits = CODE_BITS[kind]
    if model.num_expert_values or not isinstance(model, DecoderConfig):
        return CodedWeights((CodedValues(model.num_expert_values, bits),))
    of_layers = CodedValues(model.num_coded_projection_values, bits)
    if model.head_name is None:
        return CodedWeights((of_layers,))
    head = CodedValues(model.vocab_size * model.hidden_size, CODE_BITS[HEAD_FORMAT[kind]])
    return CodedWeights((of_layers, head), has_table=model.has_tied_embeddings)


def _our_name(model: ModelConfig, name: str) -> str | None:
    """None for a weight that is not multiplied in its codes whatever they are, or not read."""
    if not isinstance(model, DecoderConfig):
        return name if is_of_experts(name) and model.num_expert_values else None
    if name.startswith(model.unread_prefixes):
        return None
    for ours, theirs in reversed(model.stored_names):
        name = name.replace(theirs, ours)
    return name if model.may_be_coded(name) else None
