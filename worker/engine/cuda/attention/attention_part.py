"""Half of a step's attention: of the rows that decode, or of those behind them."""

from __future__ import annotations

from typing import Protocol

import torch

from worker.engine.cuda.batch.gpu_batch import GpuBatch
from worker.engine.cuda.batch.step_rows import StepRows


class AttentionPart(Protocol):
    """Different kernels are fast for one query a row and for many: a step may take two."""

    def plan(self, rows: StepRows) -> None:
        """As `GpuAttention.plan`."""
        ...

    def attend(
        self,
        q: torch.Tensor,  # [num_tokens, num_heads, head_dim], of the whole step
        batch: GpuBatch,
        layer_id: int,
        output: torch.Tensor,  # as `q`: its own rows' tokens are written
    ) -> None:
        """Keys and values of the step are in the pool."""
        ...
