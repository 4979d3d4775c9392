"""One step as a GPU reads it, and its rows as the host knows them when it launches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.layers.state_layer import StepStates
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.models.model import ImageRows
from worker.engine.request.token_ranges import Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows are requests, those of one token first; in a CUDA graph also those of padding."""

    num_decode: int  # rows of one token
    query_lens: Ints  # [num_rows]
    seq_lens: Ints  # [num_rows], tokens of each in the KV pool after this step
    rows: torch.Tensor  # [num_rows] int64, of `page_table`; on the device
    page_table: torch.Tensor  # [num_table_rows, max_pages] int32, on the device
    in_graph: bool = False  # a graph that was captured for so many rows runs them

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)

    @property
    def decoding(self) -> StepRows:
        return self._part(self.num_decode, slice(self.num_decode))

    @property
    def extending(self) -> StepRows:
        """Those behind them."""
        return self._part(0, slice(self.num_decode, None))

    def _part(self, num_decode: int, part: slice) -> StepRows:
        return StepRows(
            num_decode,
            self.query_lens[part],
            self.seq_lens[part],
            self.rows[part],
            self.page_table,
            self.in_graph,
        )


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
    stage_rows: torch.Tensor | None = None  # [num_tokens, 2, hidden_size]
    image_rows: Sequence[ImageRows] = ()
    loras: LoraBatch | None = None
    states: StepStates | None = None  # None: no layer of the model keeps one

    @property
    def rope_positions(self) -> torch.Tensor:
        """Positions of one axis: no image that has more is computed on a GPU."""
        return self.positions
