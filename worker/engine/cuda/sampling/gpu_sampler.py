"""Chooses tokens where the logits are; the host learns them behind the step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from shared.protocol.logprobs import MAX_TOP_LOGPROBS
from worker.engine.cuda.sampling.device_logprobs import DeviceLogprobs
from worker.engine.cuda.sampling.device_params import DeviceParams
from worker.engine.cuda.sampling.draws import Draws
from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.sampling.grammar_masks import GrammarMasks
from worker.engine.sampling.logit_changes import change_logits
from worker.engine.sampling.row_params import RowParams
from worker.engine.sampling.sampling_batch import SamplingBatch


class DeviceSamples(NamedTuple):
    """What a step chose."""

    token_ids: torch.Tensor  # [num_rows] int64, on the device; negative: draw_code.py says why
    logprobs: DeviceLogprobs | None


class GpuSampler:
    """As `Sampler`, in the same order: biases, masks, penalties, then the draw."""

    def __init__(self, device: GpuDevice, draws: Draws) -> None:
        self._device = device
        self._draws = draws
        self._host_params = RowParams.of([])
        self._params: DeviceParams | None = None

    def forward(self, logits: torch.Tensor, batch: SamplingBatch) -> DeviceSamples:
        """`logits` [num_rows, vocab_size] float32, overwritten. Part of enqueued work."""
        params = self._device_params(batch.params)
        positions = upload(self._device, np.array(batch.positions, np.int64))
        asked = batch.params.logprob_rows
        if not asked:
            self._change(logits, batch)
            return DeviceSamples(self._draws.draw(logits, params, positions), None)
        asked_rows = upload(self._device, np.array([row for row, _ in asked], np.int64))
        raw = logits[asked_rows]
        self._change(logits, batch)
        token_ids = self._draws.draw(logits, params, positions)
        logprobs = DeviceLogprobs.of(self._device, asked, raw, token_ids[asked_rows])
        return DeviceSamples(token_ids, logprobs)

    def _device_params(self, params: RowParams) -> DeviceParams:
        if self._params is None or params is not self._host_params:
            self._params = DeviceParams.of(params, self._device)
            self._host_params = params
        return self._params

    def _change(self, logits: torch.Tensor, batch: SamplingBatch) -> None:
        change_logits(
            logits, batch, lambda values: upload(self._device, values.numpy()), self._apply_masks
        )

    def _apply_masks(self, logits: torch.Tensor, masks: GrammarMasks) -> None:
        words = upload(self._device, masks.bitmask)
        bits = words[:, :, None] >> torch.arange(32, device=words.device, dtype=torch.int32)
        is_forbidden = (bits & 1).flatten(1)[:, : logits.shape[1]] == 0
        rows = upload(self._device, np.array(masks.rows, np.int64))
        logits.index_copy_(0, rows, logits[rows].masked_fill_(is_forbidden, -torch.inf))


def most_demanding(num_rows: int) -> SamplingBatch:
    """What takes the most memory: a threshold and all logprobs for each row."""
    params = RowParams(
        reqs=[],
        temperature=np.ones(num_rows, np.float32),
        top_k=np.zeros(num_rows, np.int64),
        top_p=np.full(num_rows, 0.9, np.float32),
        min_p=np.zeros(num_rows, np.float32),
        seeds=[0] * num_rows,
        logprob_rows=[(row, MAX_TOP_LOGPROBS) for row in range(num_rows)],
        changing_rows=[],
        grammar_rows=[],
        narrowed_rows=[],
    )
    return SamplingBatch(params, [0] * num_rows, None, [], None, None, None, [])
