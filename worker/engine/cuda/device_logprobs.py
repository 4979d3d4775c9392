"""Logprobs of the tokens that a step chose, for rows that ask: computed where the logits are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from worker.engine.cuda.gpu_device import GpuDevice, download
from worker.engine.sampling.row_logprobs import pack_record


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLogprobs:
    """On the host, once the step's moment has come. One row for each that asks."""

    rows: list[int]  # of the step's samples
    num_tops: list[int]
    ranks: torch.Tensor  # [num_rows] int64
    top_ids: torch.Tensor  # [num_rows, most] int64, falling by logprob
    logprobs: torch.Tensor  # [num_rows, 1 + most] float32: of the token, then of those

    @classmethod
    def of(
        cls,
        device: GpuDevice,
        asked: list[tuple[int, int]],  # row, and how many others
        logits: torch.Tensor,  # [num_asked, vocab_size] float32, as the model gave them
        token_ids: torch.Tensor,  # [num_asked] int64
    ) -> Self:
        own = logits.gather(1, token_ids.clamp(min=0)[:, None])
        most = min(max(num_top for _, num_top in asked), logits.shape[1])
        top = logits.topk(most, dim=1)
        normalizers = logits.double().logsumexp(dim=1, keepdim=True)
        logprobs = torch.cat([own, top.values], dim=1) - normalizers
        return cls(
            [row for row, _ in asked],
            [num_top for _, num_top in asked],
            download(device, 1 + (logits > own).sum(dim=1)),
            download(device, top.indices),
            download(device, logprobs.float()),
        )

    def records(self, token_ids: list[int]) -> dict[int, bytes]:
        """By row; of `token_ids`, those of all of the step's samples."""
        records = {}
        for idx, (row, num_top) in enumerate(zip(self.rows, self.num_tops, strict=True)):
            top_ids = self.top_ids[idx, :num_top].numpy().astype(np.int64)
            logprobs = self.logprobs[idx, : 1 + num_top].numpy()
            records[row] = pack_record(token_ids[row], int(self.ranks[idx]), top_ids, logprobs)
        return records
