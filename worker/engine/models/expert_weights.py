"""The seam between mixtures of experts and who multiplies their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from worker.engine.models.decoder_weights import Projection
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import ClampedGate
from worker.engine.models.layer_ops import CodedLinears
from worker.engine.models.loader import WeightReader


class ExpertWeights(NamedTuple):
    """The weights of one expert."""

    gate_up: Projection  # [2 * intermediate_size, hidden_size]: gates, then their values
    down: Projection  # [hidden_size, intermediate_size]


@dataclass(frozen=True, slots=True)
class SiluGate:
    """silu(gate) * value."""


Gate = SiluGate | ClampedGate


class Chosen(NamedTuple):
    """The experts chosen for tokens and their shares, [num_tokens, num_chosen] each."""

    expert_ids: torch.Tensor  # int64, rising
    shares: torch.Tensor  # float32: what each counts


# Of a mixture's router its logits, [num_tokens, num_experts] float32, and its correction.
ChooseExperts = Callable[[ExpertsConfig, torch.Tensor, torch.Tensor | None], Chosen]


class ExpertLayer(Protocol):
    """All experts of a layer."""

    def __call__(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """`inputs` [num_tokens, hidden_size], of whoever was chosen. Gives the sums, in the shape
        and dtype of `inputs`: bfloat16 where weights are in codes.
        """
        ...


class ExpertMaker(Protocol):
    """Makes the experts of a model's layers."""

    @property
    def choose(self) -> ChooseExperts: ...

    def make(
        self,
        config: ExpertsConfig,
        reader: WeightReader,
        prefix: str,  # of the names of the MLP's tensors
        layer_id: int,
    ) -> ExpertLayer:
        """Raises ConfigError where they are not as the configuration says."""
        ...


class ExpertProducts(Protocol):
    """Multiplies experts as they are stored."""

    def make(self, experts: Iterable[ExpertWeights], gate: Gate) -> ExpertLayer:
        """Takes each expert's weights before it asks for the next. Raises ConfigError."""
        ...


class CodedProducts(ExpertProducts, CodedLinears, Protocol):
    """Multiplies all that may be in codes."""
