"""Paged attention in plain torch: what the kernels are compared with, and `torch` by its name."""

from __future__ import annotations

import torch

from worker.engine.cuda.attention.gpu_attention import PagedGpuAttention
from worker.engine.cuda.batch.gpu_batch import StepRows
from worker.engine.models.layer_ops import norm_rotate
from worker.engine.models.rotary import RotaryEmbedding


class PlainAttention(PagedGpuAttention):
    """Every token against all slots of its request's row of the page table. Slow, and short."""

    def plan(self, rows: StepRows) -> None:
        """Nothing: lengths and pages are read where they are."""

    def forward_qkv(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
        rotary: RotaryEmbedding,
        layer_id: int,
    ) -> torch.Tensor:
        layer = self._layers[layer_id]
        num_rotated = layer.num_heads + layer.num_kv_heads
        angles = rotary.angles(self._batch.positions)
        rotated = norm_rotate(qkv[:, :num_rotated], norm, eps, angles)
        q, k = rotated[:, : layer.num_heads], rotated[:, layer.num_heads :]
        return self.forward(q, k, qkv[:, num_rotated:], layer_id)

    def _attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        batch, layer = self._batch, self._layers[layer_id]
        keys, values = (
            data[batch.page_table[batch.token_rows].long()]
            .flatten(1, 2)
            .float()
            .repeat_interleave(layer.group, dim=2)
            for data in self._pool.keys_and_values(layer_id)
        )  # [num_tokens, num_slots, num_heads, head_dim]
        values = values[..., : layer.num_values]
        scores = torch.einsum("thd,tshd->ths", q.float(), keys) * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        distance = batch.positions[:, None] - torch.arange(keys.shape[1], device=q.device)
        is_hidden = distance < 0
        if layer.window is not None:
            is_hidden |= distance >= layer.window
        if layer.chunk is not None:
            is_hidden |= distance > (batch.positions % layer.chunk)[:, None]
        scores.masked_fill_(is_hidden[:, None], -torch.inf)
        if layer.sinks is not None:
            sinks = layer.sinks.float()[None, :, None].expand(len(q), -1, 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(-1)[..., : keys.shape[1]]
        return torch.einsum("ths,tshd->thd", weights, values).to(q.dtype).flatten(1)
