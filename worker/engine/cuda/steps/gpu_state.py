"""What a model has on its GPU beside its weights: keys, values, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.cuda.batch.step_inputs import StepInputs
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.cuda.steps.gpu_forward import GpuForward


@dataclass(frozen=True, slots=True, eq=False)
class GpuState:
    """Of one pool. While the engine is made there is one that holds nothing, to try steps with."""

    pool: GpuKVPool
    inputs: StepInputs
    forward: GpuForward
    mixed: GpuForward  # for CUDA graphs of steps with prefill: its attention can be there
