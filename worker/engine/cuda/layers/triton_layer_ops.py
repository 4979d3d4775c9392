"""The layer operations on a GPU by our own kernels, each one kernel."""

from __future__ import annotations

from functools import partial

import torch

from worker.engine.cuda.kernels import layer_kernels
from worker.engine.cuda.kernels.fixed_linear import fixed_linear
from worker.engine.cuda.layers.gpu_layer_ops import PlainGpuLayerOps
from worker.engine.layers.linear import Linear


class TritonLayerOps(PlainGpuLayerOps):
    """Triton's; norms, rotation and the way to the KV pool are one, in the attention's hands."""

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return layer_kernels.add_rms_norm(delta, residual, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return layer_kernels.silu_mul(gate_up)


class FixedLinears:
    """Makes layers of our own product, of which there is one for every number of rows.

    So rows do not depend on each other, not in one bit.
    """

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return partial(fixed_linear, weight=weight.contiguous(), bias=bias)
