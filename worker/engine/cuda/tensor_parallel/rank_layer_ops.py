"""The layer operations of a rank: sums over all ranks where a layer's parts meet."""

from __future__ import annotations

import torch

from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.layer_ops import LayerOps


class RankLayerOps:
    """What attention and MLP add is whole only as a sum, and the next norm is the first to read it.

    Outputs are divided among the ranks as well: each multiplies its share of the vocabulary, and
    all have the logits.
    """

    def __init__(self, ops: LayerOps, group: RankGroup, *, is_deterministic: bool) -> None:
        self.linears = ops.linears
        self._ops = ops
        self._group = group
        self._sum = group.sum_in_order if is_deterministic else group.sum
        self._is_whole = True  # nothing but embeddings, which every rank has

    def begin(self, positions: torch.Tensor) -> None:
        self._is_whole = True
        self._ops.begin(positions)

    def add_rms_norm(
        self, delta: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._is_whole:
            self._sum(delta)
        self._is_whole = False
        return self._ops.add_rms_norm(delta, residual, weight, eps)

    def attend(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        layer_id: int,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        return self._ops.attend(qkv, norm, eps, layer_id, attention)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._ops.silu_mul(gate_up)

    def head(self, weight: torch.Tensor) -> Linear:
        """Shares are of one size, the last ones filled up with zeros that nobody sees."""
        num_outputs, hidden_size = weight.shape
        share = -(-num_outputs // self._group.size)
        rows = weight[self._group.rank * share :][:share]
        own = weight.new_zeros(share, hidden_size)
        own[: len(rows)] = rows
        linear = self._ops.head(own)
        return lambda hidden: self._group.gather(linear(hidden))[:, :num_outputs].contiguous()
