"""The layer operations on a GPU, each one kernel."""

from __future__ import annotations

import torch

from worker.engine.cuda.kernels import layer_kernels
from worker.engine.cuda.layers.gpu_layer_ops import PlainGpuLayerOps


class TritonLayerOps(PlainGpuLayerOps):
    """Triton's; norms, rotation and the way to the KV pool are one, in the attention's hands."""

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return layer_kernels.add_rms_norm(delta, residual, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return layer_kernels.silu_mul(gate_up)
