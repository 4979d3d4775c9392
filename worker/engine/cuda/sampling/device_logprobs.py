"""Logprobs of the tokens that a step chose, for rows that ask: computed where the logits are.

A row's are the same, bit for bit, whatever rows are beside it: what is summed are integers, and no
two of the numbers that are sorted are equal, so that it does not matter how torch goes about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from worker.engine.device.gpu_device import GpuDevice, download, upload
from worker.engine.request.token_ranges import Ints
from worker.engine.sampling.row_logprobs import Alternatives, pack_record

ONE = float(1 << 42)  # of a share of probability, as an integer: 2 million of them can be summed


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLogprobs:
    """On the host, once the step's moment has come. One row for each that asks."""

    rows: list[int]  # of the step's samples
    asked: list[Alternatives]
    ranks: torch.Tensor  # [num_rows] int64
    top_ids: torch.Tensor  # [num_rows, most] int64, falling by logprob, then rising
    # [num_rows, 1 + most + most_named] float32: of the token, then of those, then of what is named
    logprobs: torch.Tensor

    @classmethod
    def of(
        cls,
        device: GpuDevice,
        asked: list[tuple[int, Alternatives]],  # by row
        logits: torch.Tensor,  # [num_asked, vocab_size] float32, as the model gave them
        token_ids: torch.Tensor,  # [num_asked] int64
    ) -> Self:
        own = logits.gather(1, token_ids.clamp(min=0)[:, None])
        most = min(max(each.num_top for _, each in asked), logits.shape[1])
        top_ids = _order(logits).topk(most, dim=1).indices
        values = torch.cat([own, logits.gather(1, top_ids)], dim=1)
        named = _named_ids([each.token_ids for _, each in asked])
        if named.size:
            values = torch.cat([values, logits.gather(1, upload(device, named))], dim=1)
        logprobs = values - _log_sums(logits)
        return cls(
            [row for row, _ in asked],
            [each for _, each in asked],
            download(device, 1 + (logits > own).sum(dim=1)),
            download(device, top_ids),
            download(device, logprobs.float()),
        )

    def records(self, token_ids: list[int]) -> dict[int, bytes]:
        """Records of logprobs by row; `token_ids` are those of all of the step's samples."""
        records = {}
        first_named = 1 + self.top_ids.shape[1]
        for idx, (row, (num_top, named)) in enumerate(zip(self.rows, self.asked, strict=True)):
            ids = self.top_ids[idx, :num_top].numpy().astype(np.int64)
            logprobs = self.logprobs[idx, : 1 + num_top].numpy()
            if named:
                ids = np.concatenate([ids, np.array(named, np.int64)])
                of_named = self.logprobs[idx, first_named : first_named + len(named)].numpy()
                logprobs = np.concatenate([logprobs, of_named])
            records[row] = pack_record(token_ids[row], int(self.ranks[idx]), ids, logprobs)
        return records


def _named_ids(named: list[tuple[int, ...]]) -> Ints:
    """[num_rows, most_named], behind those of a row anything."""
    ids = np.zeros((len(named), max(map(len, named))), np.int64)
    for row, of_row in enumerate(named):
        ids[row, : len(of_row)] = of_row
    return ids


def _order(logits: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the logits, no two equal: of equal logits the first is larger."""
    keys = (logits + 0.0).view(torch.int32).long()  # of zeros there are no longer two
    keys ^= (keys >> 63).bitwise_and_(0x7FFFFFFF)  # the bits of negative ones rise when they fall
    keys <<= 32
    keys -= torch.arange(logits.shape[1], device=logits.device)
    return keys


def _log_sums(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials: [num_rows, 1] float64."""
    largest = logits.amax(dim=1, keepdim=True).double()
    shares = logits.double().sub_(largest).exp_().mul_(ONE).round_()
    total = shares.long().sum(dim=1, keepdim=True)
    return largest + torch.log(total.double() / ONE)
