"""Mixtures of experts on a GPU by our own kernels: all experts of a layer in one product."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.engine.cuda.kernels.expert_kernels import (
    MANY_ROWS,
    block_rows_for,
    choose_best,
    expert_linear,
    sort_rows,
    sum_shares,
)
from worker.engine.models.expert_weights import ChooseExperts, Chosen, ExpertLayer
from worker.engine.models.experts.expert_router import choose_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.experts.stored_layers import read_experts
from worker.engine.models.layer_ops import LayerOps, mlp_activation
from worker.engine.models.loader import WeightReader


@dataclass(frozen=True, slots=True)
class TritonExpertMaker:
    """An `ExpertMaker`. `is_fixed`: one tile shape for every number of rows, so that they do not
    depend on each other, not in one bit.
    """

    ops: LayerOps
    is_fixed: bool

    @property
    def choose(self) -> ChooseExperts:
        return _choose

    def make(
        self, config: ExpertsConfig, reader: WeightReader, prefix: str, layer_id: int
    ) -> ExpertLayer:
        return TritonExperts(config, reader, prefix, self)


class Stacked:
    """All experts' weights of one kind in one tensor: while they are read they are there once."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts = num_experts
        self._weights: torch.Tensor | None = None
        self.biases: torch.Tensor | None = None  # [num_experts, out_features]

    @property
    def weights(self) -> torch.Tensor:
        """[num_experts, out_features, in_features]."""
        assert self._weights is not None, "all have been put"
        return self._weights

    def put(self, idx: int, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        if self._weights is None:
            self._weights = weight.new_empty(self._num_experts, *weight.shape)
            if bias is not None:
                self.biases = bias.new_empty(self._num_experts, *bias.shape)
        self._weights[idx] = weight
        if self.biases is not None and bias is not None:
            self.biases[idx] = bias


class TritonExperts:
    """An `ExpertLayer` of any dtype."""

    def __init__(
        self, config: ExpertsConfig, reader: WeightReader, prefix: str, maker: TritonExpertMaker
    ) -> None:
        self._config = config
        self._maker = maker
        self._ups, self._downs = Stacked(config.num_experts), Stacked(config.num_experts)
        for idx, expert in enumerate(read_experts(config, reader, prefix, reader.read)):
            self._ups.put(idx, *expert.dense_up())
            self._downs.put(idx, *expert.dense_down())

    def __call__(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        num_experts, num_chosen = self._config.num_experts, expert_ids.shape[1]
        rows = sort_rows(expert_ids, num_experts)
        block_rows = MANY_ROWS
        if not self._maker.is_fixed:
            block_rows = block_rows_for(expert_ids.numel(), num_experts)
        ups, downs = self._ups, self._downs
        inner = expert_linear(inputs, ups.weights, ups.biases, rows, num_chosen, block_rows)
        inner = self._activated(inner)
        outputs = expert_linear(inner, downs.weights, downs.biases, rows, None, block_rows)
        return sum_shares(outputs, shares)

    def _activated(self, inner: torch.Tensor) -> torch.Tensor:
        if self._config.mlp.is_gated_by_silu:
            return self._maker.ops.silu_mul(inner)
        return mlp_activation(self._config.mlp, inner)


def _choose(config: ExpertsConfig, logits: torch.Tensor, correction: torch.Tensor | None) -> Chosen:
    """Where all may be chosen it is one kernel."""
    if config.has_groups:
        return choose_experts(config, logits, correction)
    expert_ids, shares = choose_best(
        logits,
        correction,
        config.num_chosen,
        is_softmax=config.scoring == "softmax",
        norm_eps=config.norm_eps if config.is_normed else None,
        scale=config.scale,
    )
    return Chosen(expert_ids, shares)
