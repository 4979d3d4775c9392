"""A mixture of experts in the place of a layer's MLP."""

from __future__ import annotations

import torch

from worker.engine.layers.linear import Linears
from worker.engine.models.expert_weights import ExpertLayer
from worker.engine.models.experts.coded_experts import CodedExperts
from worker.engine.models.experts.expert_router import ExpertRouter
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import GATE_UP_PARTS
from worker.engine.models.layer_ops import silu_mul
from worker.engine.models.loader import WeightReader
from worker.engine.models.model import ModelInput


class ExpertMlp:
    """What a token's experts give, and then the shared one."""

    def __init__(
        self,
        config: ExpertsConfig,
        reader: WeightReader,
        prefix: str,  # of the names of its tensors
        linears: Linears,
        coded: CodedExperts | None,  # None: experts are dense
    ) -> None:
        hidden_size = config.hidden_size
        correction = None
        if config.has_correction:
            name = f"{prefix}gate.e_score_correction_bias"
            correction = reader.read_as(torch.float32, name, config.num_experts)
        weight = reader.read(f"{prefix}gate.weight", config.num_experts, hidden_size)
        self._router = ExpertRouter(config, weight, correction, linears)
        self._experts: ExpertLayer
        if coded is None:
            self._experts = DenseExperts(config, reader, prefix, linears)
        else:
            self._experts = coded.make(config, prefix)
        self._shared: GatedMlp | None = None
        if config.shared_size:
            name = f"{prefix}{config.shared_name}."
            self._shared = GatedMlp(hidden_size, config.shared_size, reader, name, linears)

    def forward(self, x: torch.Tensor, batch: ModelInput) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        output = self._experts(x, *self._router(x))
        return output if self._shared is None else output + self._shared(x)


class DenseExperts:
    """An `ExpertLayer` in torch, of any dtype.

    Adds in float32 what a token's experts give, in the order of their numbers: its sum does not
    depend on the experts of others.
    """

    def __init__(
        self, config: ExpertsConfig, reader: WeightReader, prefix: str, linears: Linears
    ) -> None:
        sizes = config.hidden_size, config.intermediate_size
        self._experts = [
            GatedMlp(*sizes, reader, f"{prefix}experts.{idx}.", linears)
            for idx in range(config.num_experts)
        ]

    def __call__(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        total = torch.zeros(inputs.shape, dtype=torch.float32)
        for expert_id in sorted({*expert_ids.flatten().tolist()}):
            tokens, places = (expert_ids == expert_id).nonzero(as_tuple=True)
            added = self._experts[expert_id](inputs[tokens]).float()
            total[tokens] += shares[tokens, places].unsqueeze(-1) * added
        return total.to(inputs.dtype)


class GatedMlp:
    """One expert: down(silu(gate(x)) * up(x))."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        reader: WeightReader,
        prefix: str,
        linears: Linears,
    ) -> None:
        up_shape = intermediate_size, hidden_size
        parts = [reader.read(f"{prefix}{name}.weight", *up_shape) for name in GATE_UP_PARTS]
        down = reader.read(f"{prefix}down_proj.weight", hidden_size, intermediate_size)
        self._gate_up = linears.make(torch.cat(parts), None)
        self._down = linears.make(down, None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        return self._down(silu_mul(self._gate_up(x)))
