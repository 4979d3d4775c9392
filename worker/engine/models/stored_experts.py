"""The experts of a checkpoint as they are stored: one by one, or stacked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from shared.checkpoint.stored_format import MadeFormat
from shared.errors import ConfigError
from worker.engine.formats.made_codes import make_codes
from worker.engine.formats.scaled_weight import ScaledWeight, join_rows
from worker.engine.formats.stored_checkpoint import StoredCheckpoint
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import ExpertWeights

_LAYER = r"(?:.*\.)?layers\.(?P<layer>\d+)\..*experts"
_ONE = re.compile(rf"(?P<experts>{_LAYER})\.(?P<idx>\d+)\.(?P<part>\w+)\.weight")
STACKED = re.compile(rf"(?P<experts>{_LAYER})\.(?:gate_up_proj|down_proj)")
# Of gates, their values, and the way down.
_PARTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))

Weight = torch.Tensor | ScaledWeight


class ExpertSource(Protocol):
    """The experts of a layer, where they are stored."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all their tensors, as the checkpoint has them."""
        ...

    @property
    def num_experts(self) -> int: ...

    def read(self) -> Iterator[ExpertWeights]:
        """One after the other. Raises ConfigError."""
        ...


@dataclass(frozen=True, slots=True)
class SingleExperts:
    """An `ExpertSource`: each weight of each expert has a name of its own."""

    checkpoint: StoredCheckpoint
    names: frozenset[str]
    num_experts: int
    experts: str  # what all names begin with
    parts: tuple[str, str, str]
    made_format: MadeFormat | None  # of those that are stored in numbers

    @classmethod
    def of(
        cls,
        checkpoint: StoredCheckpoint,
        names: frozenset[str],
        made_format: MadeFormat | None,
    ) -> SingleExperts | None:
        """None where they are not whole experts of one kind."""
        found = [match for match in map(_ONE.fullmatch, names) if match]
        starts, parts = {each["experts"] for each in found}, {each["part"] for each in found}
        kind = next((each for each in _PARTS if parts == {*each}), None)
        num_experts = len({int(each["idx"]) for each in found})
        if kind is None or len(starts) != 1 or len(found) != len(kind) * num_experts:
            return None
        if any(int(each["idx"]) >= num_experts for each in found):
            return None
        return cls(checkpoint, names, num_experts, starts.pop(), kind, made_format)

    def read(self) -> Iterator[ExpertWeights]:
        for idx in range(self.num_experts):
            gate, up, down = (self._weight(idx, part) for part in self.parts)
            yield ExpertWeights(joined(gate, up), Projection(down, None))

    def _weight(self, idx: int, part: str) -> Weight:
        name = f"{self.experts}.{idx}.{part}.weight"
        codes = self.checkpoint.codes(name)
        if codes is not None:
            return codes
        weight = self.checkpoint.read(name, torch.bfloat16)
        if self.made_format is None:
            return weight
        return make_codes(self.made_format, weight, torch.get_num_threads())


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """An `ExpertSource` of GPT-OSS: weights [num_experts, in, out] with biases, gates and values in
    turns.
    """

    checkpoint: StoredCheckpoint
    names: frozenset[str]
    num_experts: int
    experts: str  # what all names begin with

    @classmethod
    def of(cls, checkpoint: StoredCheckpoint, experts: str) -> StackedExperts | None:
        """None where some of it is missing, or not in codes."""
        weights = [f"{experts}.{part}" for part in ("gate_up_proj", "down_proj")]
        names = frozenset([*weights, *(f"{name}_bias" for name in weights)])
        if any(name not in checkpoint.heads.quantized for name in weights):
            return None
        if any(checkpoint.heads.shape(name) is None for name in names):
            return None
        shapes = [checkpoint.heads.quantized[name].shape for name in weights]
        if any(len(shape) != 3 or shape[0] != shapes[0][0] for shape in shapes):
            return None
        return cls(checkpoint, names, shapes[0][0], experts)

    def read(self) -> Iterator[ExpertWeights]:
        gate_ups, gate_up_biases = self._read("gate_up_proj")
        downs, down_biases = self._read("down_proj")
        order = gates_first(gate_up_biases.shape[1])
        for idx in range(self.num_experts):
            yield ExpertWeights(
                Projection(gate_ups.matrix(idx), gate_up_biases[idx]).with_rows(order),
                Projection(downs.matrix(idx), down_biases[idx]),
            )

    def _read(self, part: str) -> tuple[ScaledWeight, torch.Tensor]:
        """The weights as they lie in the files, [num_experts, out, in]."""
        name = f"{self.experts}.{part}"
        codes = self.checkpoint.codes(name)
        assert codes is not None, "it was found among the quantised"
        bias = self.checkpoint.read(f"{name}_bias", torch.bfloat16)
        if bias.shape != codes.stored.shape[:2]:
            raise ConfigError(
                f"the checkpoint in {self.checkpoint.files.place} has {name + '_bias'!r} of shape "
                f"{tuple(bias.shape)}, not {tuple(codes.stored.shape[:2])}"
            )
        return replace(codes, is_turned=False), bias


def find_experts(
    checkpoint: StoredCheckpoint, made_format: MadeFormat | None
) -> Mapping[int, ExpertSource]:
    """Those with weights in codes, by layer, or those of which codes are to be made."""
    singles: dict[int, set[str]] = defaultdict(set)
    coded: set[int] = set()
    found: dict[int, ExpertSource] = {}
    for name in (*checkpoint.heads.plain_names, *checkpoint.heads.quantized):
        if match := _ONE.fullmatch(name):
            layer = int(match["layer"])
            singles[layer].add(name)
            if made_format is not None or name in checkpoint.heads.quantized:
                coded.add(layer)
        elif name in checkpoint.heads.quantized and (match := STACKED.fullmatch(name)):
            stacked = StackedExperts.of(checkpoint, match["experts"])
            if stacked is not None:
                found[int(match["layer"])] = stacked
    for layer in coded:
        single = SingleExperts.of(checkpoint, frozenset(singles[layer]), made_format)
        if single is not None:
            found[layer] = single
    return found


def checked_experts(
    name: str, source: ExpertSource, shape: tuple[int, int, int]
) -> Iterator[ExpertWeights]:
    """Those of a source; `shape`: num_experts, hidden_size, intermediate_size.

    Raises ConfigError where they are not as the configuration says.
    """
    num_experts, hidden_size, intermediate_size = shape
    if source.num_experts != num_experts:
        raise ConfigError(
            f"{name!r} has {source.num_experts} experts, config.json says {num_experts}"
        )
    shapes = (2 * intermediate_size, hidden_size), (hidden_size, intermediate_size)
    for expert in source.read():
        for projection, wanted in zip(expert, shapes, strict=True):
            if tuple(projection.weight.shape) != wanted:
                raise ConfigError(
                    f"an expert of {name!r} has a weight of shape "
                    f"{tuple(projection.weight.shape)}, config.json says {wanted}"
                )
        yield expert


def gates_first(num_rows: int) -> torch.Tensor:
    """The places of gates and values that are stored in turns."""
    return torch.arange(num_rows).view(-1, 2).T.flatten()


def joined(*parts: Weight) -> Projection:
    """Gates, then their values, or both at once: in codes where all are in the same; in bfloat16
    where some are.
    """
    coded = [part for part in parts if isinstance(part, ScaledWeight)]
    dense = [part for part in parts if isinstance(part, torch.Tensor)]
    if not coded:
        return Projection(dense[0] if len(dense) == 1 else torch.cat(dense), None)
    codes = None if dense else join_rows(coded)
    if codes is not None:
        return Projection(codes, None)
    return Projection(torch.cat([_dense(part) for part in parts]), None)


def _dense(weight: Weight) -> torch.Tensor:
    if isinstance(weight, ScaledWeight):
        return weight.dense(torch.bfloat16)
    return weight.to(torch.bfloat16)
