"""One step as model and attention read it on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.models.model import ImageRows


def with_awaited(
    input_ids: torch.Tensor, awaited_rows: torch.Tensor, last_token_ids: torch.Tensor
) -> torch.Tensor:
    """[num_tokens] each: where a row is named, the token that it chose last is the input."""
    return torch.where(awaited_rows >= 0, last_token_ids[awaited_rows.clamp(min=0)], input_ids)


@dataclass(frozen=True, slots=True, eq=False)
class GpuBatch:
    """Tokens of all requests; rows are requests, those of one token first. All on the GPU.

    In a CUDA graph some rows may be nobody's: without a token, and of length 0.
    """

    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    out_loc: torch.Tensor  # [num_tokens] int64, slots of the KV pool to write
    token_rows: torch.Tensor  # [num_tokens] int64: which row of `page_table`
    num_decode: int  # rows of one token
    seq_lens: torch.Tensor  # [num_rows] int32
    page_table: torch.Tensor  # [num_rows, max_pages] int32
    image_rows: Sequence[ImageRows] = ()
    loras: LoraBatch | None = None
