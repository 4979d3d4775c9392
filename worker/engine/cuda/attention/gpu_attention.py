"""The seams between a step on a GPU and the way that its attention is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.models.rotary import RotaryEmbedding


class StepAttention(AttentionBackend, Protocol):
    """`plan`, then `begin`, come once a step, before the first layer."""

    def plan(self, rows: StepRows) -> None:
        """Never in a CUDA graph: it comes before each replay, and before a graph is captured."""
        ...

    def begin(self, batch: GpuBatch) -> None:
        """May be part of a CUDA graph."""
        ...


class GpuAttention(StepAttention, Protocol):
    """What the layers of a GPU want of it."""

    def forward_qkv(
        self,
        qkv: torch.Tensor,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        norm: torch.Tensor | None,  # [num_heads + num_kv_heads, head_dim]
        eps: float,
        rotary: RotaryEmbedding,
        layer_id: int,
    ) -> torch.Tensor:
        """Norms and rotates before it writes and attends: [num_tokens, num_heads * head_dim]."""
        ...


class PagedGpuAttention(ABC):
    """What all backends do with their pool before they attend."""

    def __init__(self, pool: GpuKVPool, layers: Sequence[AttentionLayer]) -> None:
        self._pool = pool
        self._layers = layers
        self._begun: GpuBatch | None = None

    def begin(self, batch: GpuBatch) -> None:
        self._begun = batch

    @property
    def _batch(self) -> GpuBatch:
        assert self._begun is not None, "begin() comes first"
        return self._begun

    def forward(
        self, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None, layer_id: int
    ) -> torch.Tensor:
        """Writes [num_tokens, num_kv_heads, head_dim] each, if there are any, then attends."""
        if k is not None and v is not None:
            self._pool.write(layer_id, self._batch.out_loc, k, v)
        return self._attend(q.contiguous(), layer_id)

    @abstractmethod
    def _attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        """`q` [num_tokens, num_heads, head_dim], whose keys and values are in the pool.

        [num_tokens, num_heads * num_values].
        """


class AttentionPart(Protocol):
    """Half of a step's attention: of the rows that decode, or of those behind them.

    Different kernels are fast for one query a row and for many: a step may take two.
    """

    def plan(self, rows: StepRows) -> None:
        """As `GpuAttention.plan`."""
        ...

    def attend(
        self,
        q: torch.Tensor,  # [num_tokens, num_heads, head_dim], of the whole step
        batch: GpuBatch,
        layer_id: int,
        output: torch.Tensor,  # [num_tokens, num_heads, num_values]: its own rows' are written
    ) -> None:
        """Keys and values of the step are in the pool."""
        ...
