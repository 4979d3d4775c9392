"""A step's integers travel to the GPU in one piece; what the model reads follows there."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows, with_awaited
from worker.engine.cuda.batch.step_plan import StepPlan, StepShape
from worker.engine.cuda.kv.device_page_table import DevicePageTable
from worker.engine.request.token_ranges import Ints

Values = TypeVar("Values", Ints, torch.Tensor)

NUM_TOKEN_COLUMNS = 4  # row of the step, position, input id, awaited row
NUM_ROW_COLUMNS = 2  # row of the page table, length
_GRAIN = 2  # A column begins at 16 bytes: for another place Triton would compile kernels anew.


def packed_size(shape: StepShape) -> int:
    """Values of a packed step."""
    return _token_part(shape) + NUM_ROW_COLUMNS * _width(shape.num_rows)


def pack(plan: StepPlan) -> Ints:
    """[packed_size] int64."""
    packed = np.zeros(packed_size(plan.shape), np.int64)
    tokens, rows = _tokens(packed, plan.shape), _rows(packed, plan.shape)
    tokens[0] = np.arange(len(plan.rows)).repeat(plan.query_lens)
    tokens[1], tokens[2], tokens[3] = plan.positions, plan.input_ids, plan.awaited_rows
    rows[0], rows[1] = plan.rows, plan.seq_lens
    return packed


class StepInputs:
    """Finds a step's rows in what the GPU keeps of all requests."""

    def __init__(
        self,
        page_table: DevicePageTable,
        last_token_ids: torch.Tensor,  # [num_table_rows] int64, on the device
        page_size: int,
    ) -> None:
        self.page_table = page_table
        self.last_token_ids = last_token_ids
        self._page_size = page_size

    def rows(self, plan: StepPlan, packed: torch.Tensor, *, in_graph: bool) -> StepRows:
        """`packed` [packed_size] int64 is the plan, on the device."""
        return StepRows(
            num_decode=plan.num_decode,
            query_lens=plan.query_lens,
            seq_lens=plan.seq_lens,
            rows=_rows(packed, plan.shape)[0],
            page_table=self.page_table.table,
            in_graph=in_graph,
        )

    def rows_and_lens(self, packed: torch.Tensor, shape: StepShape) -> torch.Tensor:
        """[2, num_rows] int64, views: rows of the page table, and what each has behind the step."""
        return _rows(packed[: packed_size(shape)], shape)

    def keep(self, token_ids: torch.Tensor, rows: torch.Tensor) -> None:
        """The tokens that rows of the page table chose last, both [num_samples] int64."""
        # Of a request with guesses any of its tokens stays: nobody awaits it.
        self.last_token_ids[rows] = token_ids.clamp(min=0)

    def batch(
        self, packed: torch.Tensor, shape: StepShape, max_pages: int | None = None
    ) -> GpuBatch:
        """No row has more than `max_pages` pages. Runs in CUDA graphs, too."""
        token_rows, positions, input_ids, awaited_rows = _tokens(packed, shape)
        rows, seq_lens = _rows(packed, shape)
        own_pages = self.page_table.table[rows][:, :max_pages]
        page_size = self._page_size
        pages = own_pages[token_rows, positions // page_size]
        return GpuBatch(
            input_ids=with_awaited(input_ids, awaited_rows, self.last_token_ids),
            positions=positions,
            out_loc=pages.long() * page_size + positions % page_size,
            token_rows=token_rows,
            num_decode=shape.num_decode,
            seq_lens=seq_lens.int(),
            page_table=own_pages,
        )


def _tokens(packed: Values, shape: StepShape) -> Values:
    """[NUM_TOKEN_COLUMNS, num_tokens], a view."""
    tokens = packed[: _token_part(shape)].reshape(NUM_TOKEN_COLUMNS, -1)
    return tokens[:, : shape.num_tokens]


def _rows(packed: Values, shape: StepShape) -> Values:
    """[NUM_ROW_COLUMNS, num_rows], a view."""
    return packed[_token_part(shape) :].reshape(NUM_ROW_COLUMNS, -1)[:, : shape.num_rows]


def _token_part(shape: StepShape) -> int:
    return NUM_TOKEN_COLUMNS * _width(shape.num_tokens)


def _width(num_values: int) -> int:
    return -(-num_values // _GRAIN) * _GRAIN
