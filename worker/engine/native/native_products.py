"""Products in our C++ for models that torch computes, one call each: experts, linears, heads."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence

import torch

from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import ExpertLayer, ExpertWeights, Gate
from worker.engine.native.native_experts import experts_struct, pack_experts, point_to
from worker.engine.native.native_library import (
    ExpertsStruct,
    ExpertStepStruct,
    LinearStruct,
    NativeLibrary,
)
from worker.engine.native.packed_weights import PackedWeights


class NativeProducts:
    """The `CodedProducts` of our C++: packs what it is given, in codes where it is.

    Outputs of a row are the same, bit for bit, alone and in any company: of experts those of a
    token are added in float32, in the order of their numbers.
    """

    def __init__(
        self, library: NativeLibrary, num_threads: int, inputs: InputCodes | None = None
    ) -> None:
        """`inputs`: of weights whose format does not tell theirs."""
        self.library = library
        self._layers = PackedWeights(library, inputs=inputs, num_threads=num_threads)
        self._tables = PackedWeights(library, inputs=inputs, num_threads=num_threads)
        self._team = library.product_team_new(num_threads)
        weakref.finalize(self, library.product_team_free, self._team)

    @property
    def num_coded(self) -> int:
        """How many values of the layers' weights are multiplied in their codes."""
        return self._layers.num_coded

    @property
    def integer_share(self) -> float:
        """The share of the layers' values whose inputs are rounded to integers."""
        return self._layers.integer_share

    @property
    def num_values(self) -> int:
        """All values that it has been given, in codes or not."""
        return self._layers.num_values + self._tables.num_values

    @property
    def num_bytes(self) -> int:
        """The bytes of all memory that the weights take."""
        return self._layers.num_bytes + self._tables.num_bytes

    def make(self, experts: Iterable[ExpertWeights], gate: Gate) -> ExpertLayer:
        return NativeLayer(self, *pack_experts(self._layers, experts), gate)

    def linear(self, weight: ScaledWeight, bias: torch.Tensor | None) -> NativeLinear:
        return NativeLinear(self, self._layers.linear(Projection(weight, bias)))

    def head(self, weight: ScaledWeight) -> NativeLinear:
        return self.table(weight)

    def table(self, weight: ScaledWeight) -> NativeLinear:
        return NativeLinear(self, self._tables.linear(Projection(weight, None)))

    def run(self, experts: ExpertsStruct, step: ExpertStepStruct, outputs: torch.Tensor) -> None:
        """`outputs` [num_tokens, hidden_size] bfloat16, overwritten."""
        self.library.experts_forward(
            self._team, ctypes.byref(experts), ctypes.byref(step), outputs.data_ptr()
        )

    def multiply(self, linear: LinearStruct, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """`inputs` [num_rows, in_features], `outputs` [num_rows, out_features], overwritten: both
        bfloat16, row by row in memory.
        """
        self.library.linear_forward(
            self._team, ctypes.byref(linear), inputs.data_ptr(), len(inputs), outputs.data_ptr()
        )


class NativeLinear:
    """A `Linear`, and as a `Table` what its rows are."""

    dtype = torch.bfloat16

    def __init__(self, owner: NativeProducts, linear: LinearStruct) -> None:
        self._owner = owner  # of the memory that the struct points to
        self._linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = torch.empty(len(x), self._linear.out_features, dtype=torch.bfloat16)
        self._owner.multiply(self._linear, x.to(torch.bfloat16).contiguous(), outputs)
        return outputs

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(len(ids), self._linear.in_features)
        self._owner.library.read_rows(
            ctypes.byref(self._linear), 1.0, ids.contiguous().data_ptr(), len(ids), rows.data_ptr()
        )
        return rows.to(torch.bfloat16)

    def head(self) -> NativeLinear:
        return self


class NativeLayer:
    """The `ExpertLayer` of one layer."""

    def __init__(
        self,
        owner: NativeProducts,  # of the memory that the structs point to
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
