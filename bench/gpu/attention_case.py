"""Keys, values and queries of a decode step, as attention finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import torch

from worker.engine.attention.attention_layer import AttentionLayer
from worker.engine.cuda.key_splits import KeySplits, list_pieces


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCase:
    """All requests are of one length; their pages are mixed up."""

    layer: AttentionLayer
    q: torch.Tensor  # [num_rows, num_heads, head_dim]
    keys: torch.Tensor  # [num_pages, page_size, num_kv_heads, head_dim]
    values: torch.Tensor
    page_table: torch.Tensor  # [num_rows, max_pages] int32
    seq_lens: torch.Tensor  # [num_rows] int32

    @classmethod
    def make(
        cls,
        layer: AttentionLayer,
        num_rows: int,
        context_len: int,
        page_size: int,
        device: torch.device,
    ) -> Self:
        num_pages = num_rows * context_len // page_size

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device).to(torch.bfloat16)

        return cls(
            layer,
            noise(num_rows, layer.num_heads, layer.head_dim),
            noise(num_pages, page_size, layer.num_kv_heads, layer.head_dim),
            noise(num_pages, page_size, layer.num_kv_heads, layer.head_dim),
            torch.randperm(num_pages, device=device).int().view(num_rows, -1),
            torch.full((num_rows,), context_len, dtype=torch.int32, device=device),
        )

    @property
    def num_bytes(self) -> int:
        """Of the keys and values that are read."""
        return 2 * self.keys.numel() * self.keys.itemsize

    def decode(self, num_splits: int) -> Callable[[], None]:
        """One step's attention of one layer, by our kernels."""
        from worker.engine.cuda.kernels.decode_attention import DecodeScratch, decode_attention

        num_rows, num_heads, head_dim = self.q.shape
        num_pieces = num_rows * num_splits
        pieces, ends = list_pieces(np.full(num_rows, num_splits), num_pieces)
        return partial(
            decode_attention,
            self.q,
            self.keys,
            self.values,
            self.page_table,
            self.seq_lens,
            self.layer,
            KeySplits(
                torch.from_numpy(pieces).to(self.q.device),
                torch.from_numpy(ends).int().to(self.q.device),
            ),
            DecodeScratch.of(num_pieces, num_heads, head_dim, self.q.device),
            torch.empty_like(self.q),
        )
