"""Chooses experts for tokens."""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

import torch

from worker.engine.layers.linear import Linears
from worker.engine.models.expert_weights import ChooseExperts, Chosen
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_ops import sigmoid
from worker.engine.models.loader import WeightReader


class RouterWeights(NamedTuple):
    """All in float32."""

    weight: torch.Tensor  # [num_experts, hidden_size]
    bias: torch.Tensor | None  # [num_experts]
    correction: torch.Tensor | None  # the same


def read_router(config: ExpertsConfig, reader: WeightReader, prefix: str) -> RouterWeights:
    """`prefix` of the names of the MLP's tensors. Raises ConfigError."""
    num_experts, gate = config.num_experts, f"{prefix}gate."

    def read(name: str, *shape: int) -> torch.Tensor:
        return reader.read_as(torch.float32, f"{gate}{name}", *shape)

    shape = (1, num_experts) if config.is_correction_a_row else (num_experts,)
    return RouterWeights(
        read("weight", num_experts, config.hidden_size),
        read("bias", num_experts) if config.has_router_bias else None,
        read("e_score_correction_bias", *shape).flatten() if config.has_correction else None,
    )


def read_shared_gate(
    config: ExpertsConfig, reader: WeightReader, prefix: str
) -> torch.Tensor | None:
    """[1, hidden_size] float32; None: what is beside the experts has none. Raises ConfigError."""
    if not config.has_shared_gate:
        return None
    return reader.read(f"{prefix}{config.shared_name}_gate.weight", 1, config.hidden_size).float()


class ExpertRouter:
    """In float32, each token by itself: of experts that score alike, the first is chosen."""

    def __init__(
        self,
        config: ExpertsConfig,
        weights: RouterWeights,
        linears: Linears,
        choose: ChooseExperts,
    ) -> None:
        self._config = config
        self._linear = linears.make(weights.weight, weights.bias)
        self._correction = weights.correction
        self._choose = choose

    def __call__(self, x: torch.Tensor) -> Chosen:
        """Chooses experts for the rows of x, [num_tokens, hidden_size]."""
        return self._choose(self._config, self._linear(x.float()), self._correction)


def choose_experts(
    config: ExpertsConfig, logits: torch.Tensor, correction: torch.Tensor | None
) -> Chosen:
    """A `ChooseExperts` in plain torch."""
    scores = logits.softmax(dim=-1) if config.scoring == "softmax" else sigmoid(logits)
    preferred = scores if correction is None else scores + correction
    if config.has_groups:
        preferred = _within_groups(config, preferred)
    expert_ids = _best(preferred, config.num_chosen).sort(dim=-1).values
    shares = scores.gather(1, expert_ids)
    if config.is_normed:
        shares = shares / (_sum_in_order(shares) + config.norm_eps)
    return Chosen(expert_ids, shares * config.scale)


def _within_groups(config: ExpertsConfig, scores: torch.Tensor) -> torch.Tensor:
    """-inf for experts of groups that are not chosen."""
    groups = scores.view(len(scores), config.num_groups, -1)
    best = groups.sort(dim=-1, descending=True).values[..., : config.num_group_scores]
    chosen = _best(_sum_in_order(best).squeeze(-1), config.num_chosen_groups)
    is_left_out = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(1, chosen, False)
    return groups.masked_fill(is_left_out.unsqueeze(-1), -torch.inf).view(scores.shape)


def _best(values: torch.Tensor, num: int) -> torch.Tensor:
    """Indices of each row's highest; of equals, the first ones."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :num]


def _sum_in_order(values: torch.Tensor) -> torch.Tensor:
    """Over the last dimension, which is kept: one after the other, however many rows there are."""
    return functools.reduce(operator.add, values.unbind(-1)).unsqueeze(-1)
