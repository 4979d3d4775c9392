"""A mixture of experts in the place of a layer's MLP."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from worker.engine.layers.linear import Linear, Linears
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.dense_mlp import DenseMlp
from worker.engine.models.expert_weights import ChooseExperts, ExpertLayer, ExpertMaker
from worker.engine.models.experts.expert_router import (
    ExpertRouter,
    RouterWeights,
    choose_experts,
    read_router,
    read_shared_gate,
)
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.experts.stored_layers import ReadWeight, StoredExpert, read_experts
from worker.engine.models.layer_ops import LayerOps, MakeProjection, mlp_activation, sigmoid
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import rms_norm


class ExpertMlp:
    """What a token's experts give, and then the shared one."""

    def __init__(
        self,
        config: ExpertsConfig,
        shared: DenseMlp | None,  # every token goes through it
        weights: DecoderWeights,
        layer_id: int,
        ops: LayerOps,
        maker: ExpertMaker,
    ) -> None:
        size, prefix = config.hidden_size, f"model.layers.{layer_id}.mlp."
        reader, linears = weights.reader, ops.linears
        router = read_router(config, reader, prefix)
        self._router = ExpertRouter(config, router, linears, maker.choose)
        self._experts = maker.make(config, reader, prefix, layer_id)
        self._scales_inputs = config.scales_inputs
        self._to_latent: Linear | None = None
        self._from_latent: Linear | None = None
        if latent_size := config.latent_size:
            to_latent = weights.projection(prefix, {"fc1_latent_proj": latent_size}, size)
            from_latent = weights.projection(prefix, {"fc2_latent_proj": size}, latent_size)
            self._to_latent = ops.projection(*to_latent)
            self._from_latent = ops.projection(*from_latent)
        self._shared = shared
        gate = read_shared_gate(config, reader, prefix)
        self._shared_gate = None if gate is None else linears.make(gate, None)

    def forward(self, x: torch.Tensor, batch: ModelInput) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        output = self._routed(x)
        if self._shared is None:
            return output
        shared = self._shared.forward(x, batch)
        if self._shared_gate is not None:
            shared = shared * sigmoid(self._shared_gate(x.float())).to(x.dtype)
        return output + shared

    def _routed(self, x: torch.Tensor) -> torch.Tensor:
        expert_ids, shares = self._router(x)
        if self._scales_inputs:
            return self._of_scaled(x, expert_ids, shares)
        if self._to_latent is None or self._from_latent is None:
            return self._experts(x, expert_ids, shares)
        return self._from_latent(self._experts(self._to_latent(x), expert_ids, shares))

    def _of_scaled(
        self, x: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """The same, where each expert is given `x` times its share."""
        total = torch.zeros_like(x, dtype=torch.float32)
        for place in range(expert_ids.shape[1]):
            one = slice(place, place + 1)
            inputs = x * shares[:, one].to(x.dtype)
            total += self._experts(inputs, expert_ids[:, one], torch.ones_like(shares[:, one]))
        return total.to(x.dtype)


class MlpBesideExperts:
    """A layer's MLP, and experts beside it: each is given the stream, and what it gives is added,
    by norms of its own.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        eps: float,  # of the norms
        dense: DenseMlp,
        reader: WeightReader,
        layer_id: int,
        linears: Linears,
        maker: ExpertMaker,
    ) -> None:
        prefix, hidden_size = f"model.layers.{layer_id}.", config.hidden_size
        self._dense, self._eps = dense, eps
        names = ("pre_feedforward_layernorm", "post_feedforward_layernorm_1")
        names_of_experts = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2")
        self._norms, self._expert_norms = (
            [reader.read(f"{prefix}{name}.weight", hidden_size) for name in each]
            for each in (names, names_of_experts)
        )
        router = f"{prefix}router."
        weight = reader.read_as(
            torch.float32, f"{router}proj.weight", config.num_experts, hidden_size
        )
        scale = reader.read_as(torch.float32, f"{router}scale", hidden_size)
        weight = weight * scale * hidden_size**-0.5
        self._router = ExpertRouter(
            config, RouterWeights(weight, None, None), linears, maker.choose
        )
        name = f"{router}per_expert_scale"
        self._expert_scales = reader.read_as(torch.float32, name, config.num_experts)
        self._experts = maker.make(config, reader, prefix, layer_id)

    def forward(self, x: torch.Tensor, batch: ModelInput) -> torch.Tensor:
        """[num_tokens, hidden_size] of the stream -> the same."""
        before, after = self._norms
        dense = self._dense.forward(rms_norm(x, before, self._eps), batch)
        expert_ids, shares = self._router(rms_norm(x.float(), None, self._eps))
        shares = shares * self._expert_scales[expert_ids]
        before_experts, after_experts = self._expert_norms
        inputs = rms_norm(x, before_experts, self._eps)
        routed = rms_norm(self._experts(inputs, expert_ids, shares), after_experts, self._eps)
        return rms_norm(dense, after, self._eps) + routed


@dataclass(frozen=True, slots=True)
class LinearExpertMaker:
    """An `ExpertMaker`: each matrix of each is a linear of its own."""

    make_projection: MakeProjection
    read: ReadWeight | None = None  # in codes where they are stored so; None: in numbers

    @property
    def choose(self) -> ChooseExperts:
        return choose_experts

    def make(
        self, config: ExpertsConfig, reader: WeightReader, prefix: str, layer_id: int
    ) -> ExpertLayer:
        is_even = config.outer_size % 2 == config.intermediate_size % 2 == 0
        read = self.read if self.read is not None and is_even else reader.read
        experts = read_experts(config, reader, prefix, read)
        return LinearExperts(config, experts, self.make_projection)


class LinearExperts:
    """An `ExpertLayer` in torch, of any dtype.

    Adds in float32 what a token's experts give, in the order of their numbers, as the router gives
    them: its sum does not depend on the experts of others.
    """

    def __init__(
        self, config: ExpertsConfig, experts: Iterable[StoredExpert], make: MakeProjection
    ) -> None:
        self._config = config
        self._ups: list[Linear] = []
        self._downs: list[Linear] = []
        for expert in experts:
            self._ups.append(make(*expert.up()))
            self._downs.append(make(expert.down, expert.down_bias))

    def __call__(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        num_tokens, num_chosen = expert_ids.shape
        of_rows = expert_ids.flatten()
        order = of_rows.argsort(stable=True)  # rows by expert, an expert's by token
        counts = Counter(of_rows.tolist())
        inner = _of_each(self._ups, counts, inputs[order // num_chosen])
        outputs = _of_each(self._downs, counts, mlp_activation(self._config.mlp, inner))
        by_token = torch.empty_like(outputs, dtype=torch.float32)
        by_token[order] = outputs.float()
        shared = by_token.view(num_tokens, num_chosen, -1) * shares.unsqueeze(-1)
        return functools.reduce(operator.add, shared.unbind(1)).to(inputs.dtype)


def _of_each(
    linears: Sequence[Linear], counts: Mapping[int, int], rows: torch.Tensor
) -> torch.Tensor:
    """Multiplies rows that stand by expert, `counts` of each, with the experts' linears."""
    expert_ids = sorted(counts)
    parts = torch.split(rows, [counts[each] for each in expert_ids])
    return torch.cat([linears[each](part) for each, part in zip(expert_ids, parts, strict=True)])
