"""Draws of steps that decode, each one launch: tokens are chosen, and kept for the next step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from worker.engine.cuda.batch.step_inputs import StepInputs
from worker.engine.cuda.batch.step_plan import StepShape
from worker.engine.cuda.sampling.draws import (
    DeviceParams,
    Draws,
    keeps_part,
    pack_params,
    packed_params_size,
)
from worker.engine.device.gpu_device import GpuDevice, Work, upload_to
from worker.engine.sampling.row_params import RowParams

# [num_rows] int64 on the device, valid until the next step, in `last_token_ids` already. Part of
# enqueued work: it allocates nothing.
DrawCaptured = Callable[[RowParams], torch.Tensor]


class CapturedDraws:
    """A CUDA graph for each number of rows whose logits one gives, and one more for rows that keep
    a part of the vocabulary. Rows and positions are those of the step as it was sent; parameters go
    there when other requests decode.
    """

    def __init__(
        self,
        device: GpuDevice,
        draws: Draws,
        inputs: StepInputs,
        logits: torch.Tensor,  # [most_rows, num_outputs] float32
        packed: torch.Tensor,  # the step as it was sent
    ) -> None:
        self._device = device
        self._draws = draws
        self._inputs = inputs
        self._logits = logits
        self._packed = packed
        most_rows, most_values = len(logits), packed_params_size(len(logits))
        self._params = torch.zeros(most_values, dtype=torch.int64, device=logits.device)
        self._token_ids = torch.zeros(most_rows, dtype=torch.int64, device=logits.device)
        self._graphs: dict[tuple[int, bool], Work] = {}
        self._sent: tuple[int, RowParams] | None = None

    def capture(self, shape: StepShape) -> None:
        """Captures the draws of steps that decode in this shape, whose graph is captured."""
        for keeps in (False, True):
            draw = partial(self._draw, shape, keeps=keeps)
            self._graphs[shape.num_rows, keeps] = self._device.capture(draw)

    def draw(self, shape: StepShape, params: RowParams) -> torch.Tensor:
        """`DrawCaptured` behind a step of this shape."""
        num_rows = shape.num_rows
        if self._sent is None or self._sent[0] != num_rows or self._sent[1] is not params:
            packed = pack_params(params, num_rows)
            upload_to(self._device, self._params[: len(packed)], packed)
            self._sent = num_rows, params
        self._graphs[num_rows, keeps_part(params)]()
        return self._token_ids[: len(params.seeds)]

    def _draw(self, shape: StepShape, *, keeps: bool) -> None:
        num_rows = shape.num_rows
        packed = self._params[: packed_params_size(num_rows)]  # as `draw` leaves it there
        params = DeviceParams.unpacked(packed, num_rows, keeps_part=keeps)
        rows, positions = self._inputs.rows_and_lens(self._packed, shape)
        token_ids = self._draws.draw(self._logits[:num_rows], params, positions)
        self._token_ids[:num_rows] = token_ids
        self._inputs.keep(token_ids, rows)
