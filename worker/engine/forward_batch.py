"""One step as the model reads it."""

from __future__ import annotations

import array
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.kv.req_to_token_pool import ReqToTokenPool
from worker.engine.schedule_batch import ScheduleBatch, ScheduledReq


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
        starts = np.array([entry.start for entry in entries])
        ends = np.array([entry.end for entry in entries])
        num_samples = np.array([entry.num_samples for entry in entries])
        query_lens = ends - starts
        rows = np.array([entry.req.row for entry in entries])
        max_pages = -(-int(ends.max()) // page_size)
        page_table = req_to_token.page_table[rows, :max_pages].astype(np.int64)
        token_ends = query_lens.cumsum()
        positions = _ranges(ends, query_lens, token_ends)
        row_of_token = np.arange(len(entries)).repeat(query_lens)
        pages, offsets = np.divmod(positions, page_size)
        input_ids = _input_ids(entries)
        awaiting = [idx for idx, entry in enumerate(entries) if entry.has_awaited_input]
        input_ids[token_ends[awaiting] - 1] = last_token_ids[rows[awaiting]]
        return cls(
            forward_mode=ForwardMode.DECODE if query_lens.max() == 1 else ForwardMode.EXTEND,
            input_ids=torch.from_numpy(input_ids),
            positions=torch.from_numpy(positions),
            out_loc=torch.from_numpy(page_table[row_of_token, pages] * page_size + offsets),
            query_lens=query_lens.tolist(),
            seq_lens=ends.tolist(),
            page_table=torch.from_numpy(page_table),
            sample_idx=torch.from_numpy(_ranges(token_ends, num_samples, num_samples.cumsum())),
        )


def _input_ids(entries: Sequence[ScheduledReq]) -> npt.NDArray[np.int64]:
    token_ids = array.array("I")
    for entry in entries:
        if entry.end - entry.start == 1 and not entry.has_awaited_input:
            token_ids.append(entry.req.token_ids[entry.start])
        else:
            token_ids.extend(entry.input_ids)
    return np.array(token_ids, np.int64)


def _ranges(
    ends: npt.NDArray[np.int64], lens: npt.NDArray[np.int64], out_ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """[ends[i] - lens[i], ends[i]) for each i, one behind the other; `out_ends` sums up `lens`."""
    shifts = (ends - out_ends).repeat(lens)
    shifts += np.arange(len(shifts))
    return shifts
