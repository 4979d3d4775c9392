"""The weights that a worker computes with."""

from __future__ import annotations

from dataclasses import dataclass

from worker.weights.checkpoint import Checkpoint


@dataclass(slots=True)
class ServedWeights:
    """Shared by all that must know. Invariant: it changes only while nothing is held, so that the
    revision at a claim is that of the tokens which follow it.
    """

    checkpoint: Checkpoint

    @property
    def revision(self) -> str:
        return self.checkpoint.revision
