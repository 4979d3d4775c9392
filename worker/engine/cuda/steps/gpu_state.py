"""What a model has on its GPU beside its weights: keys, values, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cuda.attention.gpu_attention import StepAttention
from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.batch.step_inputs import StepInputs
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.models.model import Model
from worker.engine.models.recurrent.state_cache import StateCache


class GpuForward:
    """A model with its keys and values: tells the attention of each step, then runs the model."""

    def __init__(self, model: Model, attention: StepAttention, page_size: int) -> None:
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


@dataclass(frozen=True, slots=True, eq=False)
class GpuState:
    """What steps on one pool read and write. While the engine is made, one that holds nothing
    serves to try steps with.
    """

    pool: GpuKVPool | KVCachePool
    inputs: StepInputs
    forward: GpuForward
    mixed: GpuForward  # for CUDA graphs of steps with prefill: its attention can be there
    states: StateCache | None = None  # of recurrent layers
