"""Mixtures of experts in C++: one call a layer."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence

import torch

from worker.engine.formats.scaled_weight import InputCodes
from worker.engine.models.expert_weights import ExpertLayer, ExpertWeights, Gate
from worker.engine.models.layer_config import ClampedGate
from worker.engine.native.native_library import (
    ExpertsStruct,
    ExpertStepStruct,
    LinearStruct,
    NativeLibrary,
)
from worker.engine.native.packed_weights import PackedWeights

_SILU, _CLAMPED = 0, 1  # ExpertGate of experts.h


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
        self._packed = PackedWeights(library, inputs=inputs)
        self._team = library.expert_team_new(num_threads)
        weakref.finalize(self, library.expert_team_free, self._team)

    @property
    def num_coded(self) -> int:
        """How many values of weights are multiplied in their codes."""
        return self._packed.num_coded

    @property
    def integer_share(self) -> float:
        """Of their values those whose inputs are rounded to integers."""
        return self._packed.integer_share

    @property
    def num_bytes(self) -> int:
        """Of all memory that the weights take."""
        return self._packed.num_bytes

    def make(self, experts: Iterable[ExpertWeights], gate: Gate) -> ExpertLayer:
        """Raises ConfigError where memory is out."""
        gate_ups, downs = [], []
        for expert in experts:
            gate_ups.append(self._packed.linear(expert.gate_up, interleaved=True))
            downs.append(self._packed.linear(expert.down))
        return NativeLayer(self, gate_ups, downs, gate)

    def run(self, experts: ExpertsStruct, step: ExpertStepStruct) -> None:
        self.library.experts_forward(self._team, ctypes.byref(experts), ctypes.byref(step))


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
        self._experts = ExpertsStruct(
            gate_up=(LinearStruct * len(gate_ups))(*gate_ups),
            down=(LinearStruct * len(downs))(*downs),
            num_experts=len(gate_ups),
            gate=_SILU,
        )
        if isinstance(gate, ClampedGate):
            self._experts.gate = _CLAMPED
            self._experts.slope, self._experts.bound = gate.slope, gate.bound

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
            outputs=outputs.data_ptr(),
        )
        self.owner.run(self._experts, step)
        return outputs
