"""Decode steps whose kernels are launched by one call: a CUDA graph for each of some sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from worker.engine.cuda.device_page_table import DevicePageTable
from worker.engine.cuda.gpu_batch import GpuBatch, with_awaited
from worker.engine.cuda.gpu_device import GpuDevice, Work
from worker.engine.cuda.gpu_forward import GpuForward
from worker.engine.cuda.graph_sizes import padded_size
from worker.engine.cuda.step_rows import StepRows
from worker.engine.token_ranges import Ints

# One column for each row of a step.
ROW, SEQ_LEN, INPUT_ID, AWAITED_ROW = range(4)
NUM_COLUMNS = 4


class DecodeGraphs:
    """From `columns` to `logits`, tensors that stay where they are.

    A step with fewer rows than its graph is filled up with rows of padding: one token each, whose
    keys and values go to the padding page.
    """

    def __init__(
        self,
        device: GpuDevice,
        forward: GpuForward,
        page_table: DevicePageTable,
        last_token_ids: torch.Tensor,  # [num_table_rows] int64, on the device
        sizes: Sequence[int],
        num_outputs: int,
    ) -> None:
        self._device = device
        self._forward = forward
        self._page_table = page_table
        self._last_token_ids = last_token_ids
        self._sizes = tuple(sizes)
        most = max(sizes, default=0)
        padding = torch.tensor([page_table.padding_row, 1, 0, -1]).to(device.torch_device)
        self._padding = padding[:, None]  # [NUM_COLUMNS, 1] int64
        self._columns = self._padding.repeat(1, most)
        self._logits = torch.empty(most, num_outputs, device=device.torch_device)
        # The largest first: smaller ones find the memory that it needed.
        self._graphs: dict[int, Work] = {
            size: self._capture(size) for size in sorted(sizes, reverse=True)
        }

    def has_room(self, num_rows: int) -> bool:
        return padded_size(self._sizes, num_rows) is not None

    def run(self, columns: torch.Tensor, seq_lens: Ints) -> torch.Tensor:
        """`columns` [NUM_COLUMNS, num_rows] int64, on the device, and one of them as the host knows
        it; [num_rows, num_outputs] float32, valid until the next run. Part of enqueued work.
        """
        num_rows = columns.shape[1]
        size = padded_size(self._sizes, num_rows)
        assert size is not None, "has_room() comes first"
        self._columns[:, :num_rows] = columns
        self._columns[:, num_rows:size] = self._padding
        self._plan(size, seq_lens)
        self._graphs[size]()
        return self._logits[:num_rows]

    def _capture(self, size: int) -> Work:
        self._device.enqueue(lambda: self._plan(size, np.zeros(0, np.int64)))
        return self._device.capture(lambda: self._compute(size))

    def _plan(self, size: int, seq_lens: Ints) -> None:
        ones = np.ones(size, np.int64)
        self._forward.plan(
            StepRows(
                num_decode=size,
                query_lens=ones,
                seq_lens=np.concatenate([seq_lens, ones[len(seq_lens) :]]),
                rows=self._columns[ROW, :size],
                page_table=self._page_table.table,
                in_graph=True,
            )
        )

    def _compute(self, size: int) -> None:
        columns = self._columns[:, :size]
        batch = decode_batch(columns, self._page_table, self._last_token_ids, self._page_size)
        self._logits[:size].copy_(self._forward.logits(self._forward.hidden(batch)))

    @property
    def _page_size(self) -> int:
        return self._forward.page_size


def decode_batch(
    columns: torch.Tensor,
    page_table: DevicePageTable,
    last_token_ids: torch.Tensor,
    page_size: int,
) -> GpuBatch:
    """`columns` [NUM_COLUMNS, num_rows] int64. All that follows from them is computed here."""
    rows, seq_lens = columns[ROW], columns[SEQ_LEN]
    input_ids = with_awaited(columns[INPUT_ID], columns[AWAITED_ROW], last_token_ids)
    positions = seq_lens - 1
    own_pages = page_table.table[rows]
    pages = own_pages.gather(1, (positions // page_size)[:, None]).squeeze(1)
    return GpuBatch(
        input_ids=input_ids,
        positions=positions,
        out_loc=pages.long() * page_size + positions % page_size,
        token_rows=torch.arange(len(rows), device=rows.device),
        num_decode=len(rows),
        seq_lens=seq_lens.int(),
        page_table=own_pages,
    )
