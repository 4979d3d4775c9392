"""Mixtures of experts in C++: within its decoder, or in one call a layer."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch.nn.functional import pad

from worker.engine.formats.scaled_weight import InputCodes
from worker.engine.models.expert_weights import ExpertLayer, ExpertWeights, Gate
from worker.engine.models.experts.expert_router import RouterWeights
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import ClampedGate
from worker.engine.native.native_library import (
    ExpertsStruct,
    ExpertStepStruct,
    LinearStruct,
    NativeLibrary,
    RouterStruct,
)
from worker.engine.native.packed_weights import PackedWeights

_SILU, _CLAMPED = 0, 1  # ExpertGate of experts.h
_SCORINGS = {"softmax": 0, "sigmoid": 1}  # Scoring of router.h
_LANES = 16  # kLanes of lanes.h


def experts_struct(num_experts: int, gate: Gate) -> ExpertsStruct:
    """Without their weights."""
    if isinstance(gate, ClampedGate):
        return ExpertsStruct(
            num_experts=num_experts, gate=_CLAMPED, slope=gate.slope, bound=gate.bound
        )
    return ExpertsStruct(num_experts=num_experts, gate=_SILU)


def point_to(experts: ExpertsStruct, address: int) -> int:
    """Their weights lie there: all that go up, then all that go down. Where they end."""
    num_bytes: int = experts.num_experts * ctypes.sizeof(LinearStruct)
    experts.gate_up, experts.down = address, address + num_bytes
    return address + 2 * num_bytes


def pack_experts(
    packed: PackedWeights, experts: Iterable[ExpertWeights]
) -> tuple[list[LinearStruct], list[LinearStruct]]:
    """What goes up and what goes down, by expert. Raises ConfigError where memory is out."""
    gate_ups, downs = [], []
    for expert in experts:
        gate_ups.append(packed.linear(expert.gate_up, interleaved=True))
        downs.append(packed.linear(expert.down))
    return gate_ups, downs


def router_struct(
    packed: PackedWeights,
    config: ExpertsConfig,
    weights: RouterWeights,
    shared_gate: torch.Tensor | None,  # [1, hidden_size] float32
) -> RouterStruct:
    """Its outputs by sixteen, whose weights of an input lie side by side."""
    rows = weights.weight if shared_gate is None else torch.cat([weights.weight, shared_gate])
    missing = -len(rows) % _LANES
    blocks = pad(rows, (0, 0, 0, missing)).view(-1, _LANES, rows.shape[1]).transpose(1, 2)

    def place(values: torch.Tensor | None) -> int | None:
        """[num_experts], with zeros behind them."""
        if values is None:
            return None
        return packed.floats(pad(values, (0, len(rows) + missing - len(values))))

    return RouterStruct(
        weights=packed.floats(blocks),
        bias=place(weights.bias),
        correction=place(weights.correction),
        num_experts=config.num_experts,
        has_shared_gate=shared_gate is not None,
        num_chosen=config.num_chosen,
        scoring=_SCORINGS[config.scoring],
        num_groups=config.num_groups,
        num_chosen_groups=config.num_chosen_groups,
        num_group_scores=config.num_group_scores,
        is_normed=config.is_normed,
        norm_eps=config.norm_eps,
        scale=config.scale,
    )


class NativeExperts:
    """The `ExpertProducts` of our C++: packs what it is given, in codes where it is.

    A token's outputs are the same, bit for bit, alone and in any company: those of its experts are
    added in float32, in the order of their numbers.
    """

    def __init__(
        self, library: NativeLibrary, num_threads: int, inputs: InputCodes | None = None
    ) -> None:
        """`inputs`: of weights whose format does not tell theirs."""
        self.library = library
        self._packed = PackedWeights(library, inputs=inputs, num_threads=num_threads)
        self._team = library.expert_team_new(num_threads)
        weakref.finalize(self, library.expert_team_free, self._team)

    @property
    def num_coded(self) -> int:
        """How many values of weights are multiplied in their codes."""
        return self._packed.num_coded

    @property
    def integer_share(self) -> float:
        """The share of their values whose inputs are rounded to integers."""
        return self._packed.integer_share

    @property
    def num_bytes(self) -> int:
        """The bytes of all memory that the weights take."""
        return self._packed.num_bytes

    def make(self, experts: Iterable[ExpertWeights], gate: Gate) -> ExpertLayer:
        """Raises ConfigError where memory is out."""
        return NativeLayer(self, *pack_experts(self._packed, experts), gate)

    def run(self, experts: ExpertsStruct, step: ExpertStepStruct, outputs: torch.Tensor) -> None:
        """`outputs` [num_tokens, hidden_size] bfloat16, overwritten."""
        self.library.experts_forward(
            self._team, ctypes.byref(experts), ctypes.byref(step), outputs.data_ptr()
        )


class NativeLayer:
    """The `ExpertLayer` of one layer."""

    def __init__(
        self,
        owner: NativeExperts,  # of the memory that the structs point to
        gate_ups: Sequence[LinearStruct],
        downs: Sequence[LinearStruct],
        gate: Gate,
    ) -> None:
        self.owner = owner
        self._linears = (LinearStruct * (2 * len(gate_ups)))(*gate_ups, *downs)
        self._experts = experts_struct(len(gate_ups), gate)
        point_to(self._experts, ctypes.addressof(self._linears))

    def __call__(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        inputs = inputs.to(torch.bfloat16).contiguous()
        expert_ids = expert_ids.to(torch.int64).contiguous()
        shares = shares.to(torch.float32).contiguous()
        outputs = torch.empty_like(inputs)
        num_tokens, num_chosen = expert_ids.shape
        step = ExpertStepStruct(
            num_tokens=num_tokens,
            num_chosen=num_chosen,
            inputs=inputs.data_ptr(),
            expert_ids=expert_ids.data_ptr(),
            shares=shares.data_ptr(),
        )
        self.owner.run(self._experts, step, outputs)
        return outputs
