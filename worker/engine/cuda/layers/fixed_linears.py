"""Linear layers on a GPU whose rows do not depend on each other, not in one bit."""

from __future__ import annotations

from functools import partial

import torch

from worker.engine.cuda.kernels.fixed_linear import fixed_linear
from worker.engine.layers.linear import Linear


class FixedLinears:
    """Makes layers of our own product, of which there is one for every number of rows."""

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return partial(fixed_linear, weight=weight.contiguous(), bias=bias)
