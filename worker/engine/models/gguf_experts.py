"""The experts of a GGUF file as they are stored: stacked, gates apart from their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from shared.errors import ConfigError
from shared.gguf.gguf_file import GgufTensor
from worker.engine.formats.stored.gguf_blocks import BLOCK_TYPES
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import ExpertWeights
from worker.engine.models.gguf_reader import GgufReader
from worker.engine.models.gguf_tensor import read_gguf_codes, read_tensor
from worker.engine.models.stored_experts import STACKED, ExpertSource, Weight, joined


@dataclass(frozen=True, slots=True)
class GgufExperts:
    """An `ExpertSource`."""

    reader: GgufReader
    num_experts: int
    experts: str  # what all names begin with
    has_bias: bool
    names: frozenset[str] = frozenset()

    def read(self) -> Iterator[ExpertWeights]:
        ups, downs = (self._tensors(part) for part in ("gate_up_proj", "down_proj"))
        up_biases, down_biases = (
            self._biases(part) for part in ("gate_up_proj_bias", "down_proj_bias")
        )
        for idx in range(self.num_experts):
            gate_up = joined(*(self._expert(tensor, idx) for tensor in ups))
            (down,) = (self._expert(tensor, idx) for tensor in downs)
            for tensor in (*ups, *downs):
                self.reader.note_read(_part(tensor, idx))
            yield ExpertWeights(
                Projection(gate_up.weight, None if up_biases is None else up_biases[idx]),
                Projection(down, None if down_biases is None else down_biases[idx]),
            )

    def _expert(self, tensor: GgufTensor, idx: int) -> Weight:
        part, num_threads = _part(tensor, idx), self.reader.num_threads
        codes = read_gguf_codes(part, num_threads)
        return read_tensor(part, torch.bfloat16, num_threads) if codes is None else codes

    def _tensors(self, part: str) -> tuple[GgufTensor, ...]:
        return self.reader.stored(f"{self.experts}.{part}")

    def _biases(self, part: str) -> torch.Tensor | None:
        """[num_experts, outputs]: gates before their values."""
        if not self.has_bias:
            return None
        num_threads = self.reader.num_threads
        biases = [read_tensor(each, torch.float32, num_threads) for each in self._tensors(part)]
        return torch.cat(biases, dim=1)


def find_gguf_experts(reader: GgufReader) -> Mapping[int, ExpertSource]:
    """Those with weights in codes, by layer. Raises ConfigError."""
    names = frozenset(reader.names)
    found: dict[int, ExpertSource] = {}
    for name in names:
        match = STACKED.fullmatch(name)
        if match is None:
            continue
        experts = match["experts"]
        has_bias = f"{experts}.down_proj_bias" in names
        tensors = [
            tensor
            for part in ("gate_up_proj", "down_proj")
            for tensor in reader.stored(f"{experts}.{part}")
        ]
        if any(tensor.type.name in BLOCK_TYPES for tensor in tensors):
            num_experts = tensors[0].shape[0]
            found[int(match["layer"])] = GgufExperts(reader, num_experts, experts, has_bias)
    return found


def _part(tensor: GgufTensor, idx: int) -> GgufTensor:
    """An expert's part of a stack."""
    num_experts, *shape = tensor.shape
    if idx >= num_experts or len(shape) != 2:
        raise ConfigError(
            f"{tensor.path}: tensor {tensor.name!r} has shape {tensor.shape}, which holds no "
            f"expert {idx}"
        )
    start = tensor.start + idx * (tensor.num_bytes // num_experts)
    return replace(tensor, shape=tuple(shape), start=start)
