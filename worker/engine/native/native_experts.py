"""Mixtures of experts as our C++ has them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
from torch.nn.functional import pad

from worker.engine.models.expert_weights import ExpertWeights, Gate
from worker.engine.models.experts.expert_router import RouterWeights
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import Activation, ClampedGate, MlpConfig
from worker.engine.native.native_library import (
    ExpertsStruct,
    InnerStruct,
    LinearStruct,
    RouterStruct,
)
from worker.engine.native.packed_weights import PackedWeights

# Activation of activations.h
_ACTIVATIONS: dict[Activation, int] = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "relu": 3,
    "relu2": 4,
}
_CLAMPED = 5
_SCORINGS = {"softmax": 0, "sigmoid": 1}  # Scoring of router.h
_LANES = 16  # kLanes of lanes.h


def experts_struct(num_experts: int, gate: Gate) -> ExpertsStruct:
    """Without their weights."""
    clamp = gate if isinstance(gate, ClampedGate) else None
    return ExpertsStruct(num_experts=num_experts, inner=inner_struct(MlpConfig(clamp=clamp)))


def inner_struct(mlp: MlpConfig) -> InnerStruct:
    """What stands between its projections."""
    if (clamp := mlp.clamp) is not None:
        return InnerStruct(_CLAMPED, is_gated=True, slope=clamp.slope, bound=clamp.bound)
    return InnerStruct(_ACTIVATIONS[mlp.activation], is_gated=mlp.is_gated)


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
