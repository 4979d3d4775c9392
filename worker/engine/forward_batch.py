"""One step as the model reads it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.kv.req_to_token_pool import ReqToTokenPool
from worker.engine.schedule_batch import ScheduleBatch


class ForwardMode(enum.Enum):
    """What kind of step it is."""

    EXTEND = "extend"  # at least one request has several tokens
    DECODE = "decode"  # one token each


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tokens of all requests, one after the other; rows are requests."""

    forward_mode: ForwardMode
    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    out_loc: torch.Tensor  # [num_tokens] int64, slots of the KV pool to write
    query_lens: list[int]  # [num_rows], tokens of each row in this step
    seq_lens: list[int]  # [num_rows], tokens of each row in the KV pool after this step
    page_table: torch.Tensor  # [num_rows, max_pages] int64; padding page behind the end
    sample_idx: torch.Tensor  # [num_samples] int64, indices into the tokens

    @classmethod
    def from_schedule_batch(
        cls,
        batch: ScheduleBatch,
        req_to_token: ReqToTokenPool,
        page_size: int,
        last_token_ids: npt.NDArray[np.int64],
    ) -> Self:
        """`last_token_ids` [num_rows of the pool]: chosen last, for those that await them."""
        entries = batch.entries
        query_lens = [entry.num_tokens for entry in entries]
        seq_lens = [entry.end for entry in entries]
        input_ids = np.concatenate([np.asarray(entry.input_ids) for entry in entries])
        positions = np.concatenate([np.arange(entry.start, entry.end) for entry in entries])
        rows = np.array([entry.req.row for entry in entries])
        max_pages = -(-max(seq_lens) // page_size)
        page_table = req_to_token.page_table[rows, :max_pages].astype(np.int64)
        row_of_token = np.repeat(np.arange(len(entries)), query_lens)
        pages = page_table[row_of_token, positions // page_size]
        ends = np.cumsum(query_lens)
        awaiting = [idx for idx, entry in enumerate(entries) if entry.has_awaited_input]
        input_ids = input_ids.astype(np.int64)
        input_ids[ends[awaiting] - 1] = last_token_ids[rows[awaiting]]
        return cls(
            forward_mode=ForwardMode.DECODE if max(query_lens) == 1 else ForwardMode.EXTEND,
            input_ids=torch.from_numpy(input_ids),
            positions=torch.from_numpy(positions),
            out_loc=torch.from_numpy(pages * page_size + positions % page_size),
            query_lens=query_lens,
            seq_lens=seq_lens,
            page_table=torch.from_numpy(page_table),
            sample_idx=torch.from_numpy(
                np.array(
                    [
                        idx
                        for end, entry in zip(ends, entries, strict=True)
                        for idx in range(end - entry.num_samples, end)
                    ],
                    np.int64,
                )
            ),
        )
