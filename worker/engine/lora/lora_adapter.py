"""A loaded adapter, and what a step adds for those that run with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.lora.lora_projection import LoraProjections
from worker.engine.request.arrival import Adapter


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter(Adapter):
    """Stays in memory as long as a request or the pool of adapters holds it."""

    projections: LoraProjections


@dataclass(frozen=True, slots=True)
class LoraRows:
    """Tokens of a step that belong to requests of one adapter."""

    adapter: LoraAdapter
    rows: torch.Tensor  # [num_rows] int64, ascending


class LoraBatch:
    """The adapters of a step in which at least one request has an adapter."""

    def __init__(self, groups: Sequence[LoraRows]) -> None:
        self.groups = groups

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> LoraBatch:
        """The same, its rows where the model is."""
        return LoraBatch([LoraRows(group.adapter, move(group.rows)) for group in self.groups])

    def add(self, name: str, x: torch.Tensor, output: torch.Tensor) -> None:
        """In place, to the output of the projection `name` on x."""
        for group in self.groups:
            projections = group.adapter.projections
            assert isinstance(projections, Mapping), "a library adds packed ones"
            projection = projections.get(name)
            if projection is not None:
                projection.add(x, group.rows, output)


def lora_batch(
    adapters: Sequence[Adapter | None], query_lens: npt.NDArray[np.int64]
) -> LoraBatch | None:
    """The batch of a step's rows [num_rows], each with so many tokens; None: no adapters."""
    used = [adapter for adapter in dict.fromkeys(adapters) if isinstance(adapter, LoraAdapter)]
    if not used:
        return None
    numbers: dict[Adapter | None, int] = {adapter: idx for idx, adapter in enumerate(used)}
    number_of_row = np.array([numbers.get(adapter, -1) for adapter in adapters])
    number_of_token = number_of_row.repeat(query_lens)
    return LoraBatch(
        [
            LoraRows(adapter, torch.from_numpy(np.flatnonzero(number_of_token == idx)))
            for idx, adapter in enumerate(used)
        ]
    )
