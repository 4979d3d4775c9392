"""A model together with its keys and values on a GPU."""

from __future__ import annotations

import torch

from worker.engine.cuda.attention.gpu_attention import GpuAttention
from worker.engine.cuda.batch.gpu_batch import GpuBatch
from worker.engine.cuda.batch.step_rows import StepRows
from worker.engine.models.model import Model


class GpuForward:
    """Tells the attention of each step, then runs the model."""

    def __init__(self, model: Model, attention: GpuAttention, page_size: int) -> None:
        self._model = model
        self._attention = attention
        self.page_size = page_size

    def plan(self, rows: StepRows) -> None:
        """Before `hidden`, and outside of CUDA graphs that hold it."""
        self._attention.plan(rows)

    def hidden(self, batch: GpuBatch) -> torch.Tensor:
        """[num_tokens, hidden_size] in the model's dtype."""
        self._attention.begin(batch)
        return self._model.hidden(batch, self._attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] -> [num_rows, num_outputs] float32."""
        return self._model.logits(hidden).float()

    def write_logits(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """The same, into `output`: they are many, and this reads and writes them once."""
        output.copy_(self._model.logits(hidden))
