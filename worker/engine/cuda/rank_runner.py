"""One rank's part of a step: the page table, the model, and the tokens that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from worker.engine.cuda.decode_graphs import NUM_COLUMNS, DecodeGraphs
from worker.engine.cuda.device_page_table import DevicePageTable
from worker.engine.cuda.gpu_batch import GpuBatch, with_awaited
from worker.engine.cuda.gpu_device import GpuDevice, upload
from worker.engine.cuda.gpu_forward import GpuForward
from worker.engine.cuda.rank_group import RankGroup
from worker.engine.cuda.rank_orders import RunStep
from worker.engine.cuda.step_plan import StepPlan
from worker.engine.cuda.step_rows import StepRows
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.model_input import ImageRows
from worker.engine.token_ranges import Ints


class Computed(NamedTuple):
    """What the model gave, on the device."""

    hidden: torch.Tensor | None  # [num_tokens, hidden_size]; None: a graph ran, and nobody reads it
    logits: torch.Tensor | None  # [num_samples, num_outputs] float32; None: there are no samples


class RankRunner:
    """The same on every rank, or on the only one. All methods are part of enqueued work.

    The token that a request chose last lies in `last_token_ids`, by its row of the page table: the
    input of a step that was planned before the host knew it.
    """

    def __init__(
        self,
        device: GpuDevice,
        forward: GpuForward,
        page_table: DevicePageTable,
        last_token_ids: torch.Tensor,  # [num_table_rows] int64
        graphs: DecodeGraphs,
        group: RankGroup | None = None,  # None: it is the only one
    ) -> None:
        self._device = device
        self._forward = forward
        self._page_table = page_table
        self._last_token_ids = last_token_ids
        self._graphs = graphs
        self._group = group

    def compute(
        self,
        step: RunStep,
        image_rows: Sequence[ImageRows] = (),  # on the device
        loras: LoraBatch | None = None,
    ) -> Computed:
        plan = step.plan
        is_plain = plan.is_decode and loras is None and not image_rows
        if step.page_updates.shape[1]:
            self._page_table.apply(upload(self._device, step.page_updates))
        if is_plain and self._graphs.has_room(len(plan.rows)):
            return Computed(
                None, self._graphs.run(upload(self._device, _columns(plan)), plan.seq_lens)
            )
        rows = upload(self._device, plan.rows)
        self._forward.plan(
            StepRows(plan.num_decode, plan.query_lens, plan.seq_lens, rows, self._page_table.table)
        )
        if loras is not None:
            loras = loras.moved(lambda rows: upload(self._device, rows.numpy()))
        batch = self._gpu_batch(plan, rows, step.max_pages, image_rows, loras)
        hidden = self._forward.hidden(batch)
        if not plan.num_samples:
            return Computed(hidden, None)
        sample_idx = upload(self._device, plan.sample_idx)
        return Computed(hidden, self._forward.logits(hidden[sample_idx]))

    def keep(self, token_ids: torch.Tensor, plan: StepPlan) -> None:
        """Those that the step's samples chose, [num_samples] int64: every rank gets rank 0's."""
        if self._group is not None:
            self._group.share(token_ids)
        rows = upload(self._device, plan.sample_rows)
        # Of a request with guesses the last one wins; nobody awaits it.
        self._last_token_ids[rows] = token_ids.clamp(min=0)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rank 0's rows [num_rows, hidden_size]: [num_rows, num_outputs] float32."""
        if self._group is not None:
            self._group.share(hidden)
        return self._forward.logits(hidden)

    def _gpu_batch(
        self,
        plan: StepPlan,
        rows: torch.Tensor,
        max_pages: int,
        image_rows: Sequence[ImageRows],
        loras: LoraBatch | None,
    ) -> GpuBatch:
        """Of a step that is not a plain decode, or has no graph."""
        device, page_size = self._device, self._forward.page_size
        input_ids = with_awaited(
            upload(device, plan.input_ids),
            upload(device, plan.awaited_rows),
            self._last_token_ids,
        )
        positions = upload(device, plan.positions)
        own_pages = self._page_table.table[rows, :max_pages].contiguous()
        token_rows = upload(device, np.arange(len(plan.rows)).repeat(plan.query_lens))
        pages = own_pages[token_rows, positions // page_size]
        return GpuBatch(
            input_ids=input_ids,
            positions=positions,
            out_loc=pages.long() * page_size + positions % page_size,
            token_rows=token_rows,
            num_decode=plan.num_decode,
            seq_lens=upload(device, plan.seq_lens.astype(np.int32)),
            page_table=own_pages,
            image_rows=image_rows,
            loras=loras,
        )


def _columns(plan: StepPlan) -> Ints:
    """[NUM_COLUMNS, num_rows] int64, as decode_graphs.py names them."""
    columns = np.stack([plan.rows, plan.seq_lens, plan.input_ids, plan.awaited_rows])
    assert len(columns) == NUM_COLUMNS
    return columns
