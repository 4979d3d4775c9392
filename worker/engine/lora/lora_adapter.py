"""A loaded adapter, and what a step adds for those that run with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from worker.engine.lora.lora_projection import LoraProjection


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter:
    """Stays in memory as long as a request or the pool of adapters holds it."""

    adapter_id: str
    projections: Mapping[str, LoraProjection]  # by the model's own name of a projection


@dataclass(frozen=True, slots=True)
class LoraRows:
    """Tokens of a step that belong to requests of one adapter."""

    adapter: LoraAdapter
    rows: torch.Tensor  # [num_rows] int64, ascending


class LoraBatch:
    """Of a step in which at least one request has an adapter."""

    def __init__(self, groups: Sequence[LoraRows]) -> None:
        self._groups = groups

    def add(self, name: str, x: torch.Tensor, output: torch.Tensor) -> None:
        """In place, to the output of the projection `name` on x."""
        for group in self._groups:
            projection = group.adapter.projections.get(name)
            if projection is not None:
                projection.add(x, group.rows, output)
