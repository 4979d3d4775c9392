"""What a step of the model gives back to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from worker.engine.schedule_batch import ScheduleBatch


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token for each entry of the batch that has a sample, in order.

    None where the logits were no numbers.
    """

    token_ids: list[int | None]


class BatchRunner(Protocol):
    """Computes a planned step. Tests put a hash in its place."""

    def forward(self, batch: ScheduleBatch) -> StepResult: ...
