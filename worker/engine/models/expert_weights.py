"""The seam between mixtures of experts and who multiplies their weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from worker.engine.models.decoder_weights import Projection
from worker.engine.models.layer_config import ClampedGate


class ExpertWeights(NamedTuple):
    """Of one expert."""

    gate_up: Projection  # [2 * intermediate_size, hidden_size]: gates, then their values
    down: Projection  # [hidden_size, intermediate_size]


@dataclass(frozen=True, slots=True)
class SiluGate:
    """silu(gate) * value."""


Gate = SiluGate | ClampedGate


class ExpertLayer(Protocol):
    """All experts of a layer."""

    def __call__(
        self, inputs: torch.Tensor, expert_ids: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """`inputs` [num_tokens, hidden_size] bfloat16, `expert_ids` [num_tokens, num_chosen] int64,
        `shares` alike: what each counts. Gives the sums, [num_tokens, hidden_size] bfloat16.
        """
        ...


class ExpertProducts(Protocol):
    """Multiplies experts as they are stored."""

    def make(self, experts: Iterable[ExpertWeights], gate: Gate) -> ExpertLayer:
        """Takes each expert's weights before it asks for the next. Raises ConfigError."""
        ...
