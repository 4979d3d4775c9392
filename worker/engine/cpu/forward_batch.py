"""One step as the model reads it."""

from __future__ import annotations

import array
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.cache.req_to_token_pool import PageTables, ReqToTokenPool
from worker.engine.layers.state_layer import StepStates
from worker.engine.lora.lora_adapter import LoraBatch, lora_batch
from worker.engine.models.model import ImageRows
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import SampleError
from worker.engine.request.token_ranges import ranges_before


class ForwardMode(enum.Enum):
    """What kind of step it is."""

    EXTEND = "extend"  # at least one request has several tokens
    DECODE = "decode"  # one token each


class PagePlaces(NamedTuple):
    """Where keys and values are, of layers whose pages have the same numbers."""

    out_loc: torch.Tensor  # [num_tokens] int64, slots of the KV pool to write
    page_table: torch.Tensor  # [num_rows, max_pages] int32; padding where no page is


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tokens of all requests, one after the other; rows are requests."""

    forward_mode: ForwardMode
    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    out_loc: torch.Tensor  # [num_tokens] int64, slots of the KV pool to write
    query_lens: list[int]  # [num_rows], tokens of each row in this step
    seq_lens: list[int]  # [num_rows], tokens of each row in the KV pool after this step
    page_table: torch.Tensor  # [num_rows, max_pages] int32; padding page behind the end
    sample_idx: torch.Tensor  # [num_samples] int64, indices into the tokens
    stage_rows: torch.Tensor | None = None  # none: no stage is computed by it
    image_rows: tuple[ImageRows, ...] = ()
    loras: LoraBatch | None = None  # None: no request of this step has an adapter
    states: StepStates | None = None  # None: no layer of the model keeps one
    # [3, num_tokens] int64, of models with three axes. None: all are `positions`.
    axis_positions: torch.Tensor | None = None
    windows: PagePlaces | None = None  # of layers with a window; None: as all others
    reach: torch.Tensor | None = None  # [num_tokens] int64, the last position seen; None: its own

    def places(self, *, has_window: bool) -> PagePlaces:
        """The places of layers whose pages are numbered by themselves, or of all others."""
        if not has_window:
            return PagePlaces(self.out_loc, self.page_table)
        assert self.windows is not None
        return self.windows

    @property
    def rope_positions(self) -> torch.Tensor:
        return self.positions if self.axis_positions is None else self.axis_positions

    @classmethod
    def from_schedule_batch(
        cls,
        batch: ScheduleBatch,
        tables: PageTables,
        page_size: int,
        last_token_ids: Mapping[Req, int | SampleError],
        image_rows: tuple[ImageRows, ...] = (),
        states: StepStates | None = None,
        axis_positions: torch.Tensor | None = None,
        reach: torch.Tensor | None = None,
    ) -> Self:
        """`last_token_ids`: chosen last, for those that await them."""
        entries, others = batch.entries, batch.others
        lens = np.array([entry.end - entry.start for entry in others], np.int64)
        query_lens = np.concatenate([np.ones(batch.num_plain, np.int64), lens])
        num_samples = query_lens.copy()
        num_samples[batch.num_plain :] = [entry.num_samples for entry in others]
        ends = np.array([entry.end for entry in entries])
        rows = [entry.req.row for entry in entries]
        max_pages = -(-int(ends.max()) // page_size)
        token_ends = query_lens.cumsum()
        positions = ranges_before(ends, query_lens, token_ends)
        row_of_token = np.arange(len(entries)).repeat(query_lens)
        pages, offsets = np.divmod(positions, page_size)

        def places(table: ReqToTokenPool) -> PagePlaces:
            page_table = table.page_table[rows, :max_pages]
            out_loc = page_table[row_of_token, pages].astype(np.int64) * page_size + offsets
            return PagePlaces(torch.from_numpy(out_loc), torch.from_numpy(page_table))

        out_loc, page_table = places(tables.all)
        input_ids = _input_ids(batch)
        if batch.may_await:
            for entry, token_end in zip(entries, token_ends.tolist(), strict=True):
                if entry.has_awaited_input:
                    token_id = last_token_ids[entry.req]
                    # What comes of an error is dropped.
                    input_ids[token_end - 1] = token_id if isinstance(token_id, int) else 0
        return cls(
            forward_mode=ForwardMode.DECODE if query_lens.max() == 1 else ForwardMode.EXTEND,
            input_ids=torch.from_numpy(input_ids),
            positions=torch.from_numpy(positions),
            out_loc=out_loc,
            query_lens=query_lens.tolist(),
            seq_lens=ends.tolist(),
            page_table=page_table,
            sample_idx=torch.from_numpy(
                ranges_before(token_ends, num_samples, num_samples.cumsum())
            ),
            image_rows=image_rows,
            loras=lora_batch([entry.req.adapter for entry in entries], query_lens),
            states=states,
            axis_positions=axis_positions,
            windows=None if tables.windows is None else places(tables.windows),
            reach=reach,
        )


def _input_ids(batch: ScheduleBatch) -> npt.NDArray[np.int64]:
    """Anything where one is awaited."""
    plain = batch.entries[: batch.num_plain]
    token_ids = array.array("I", [entry.req.token_ids[-1] for entry in plain])
    for entry in batch.others:
        token_ids.extend(entry.input_ids)
    return np.array(token_ids, np.int64)
