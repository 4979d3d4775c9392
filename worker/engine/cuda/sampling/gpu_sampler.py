"""Chooses tokens where the logits are; the host learns them behind the step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from shared.protocol.logprobs import MAX_TOP_LOGPROBS
from worker.engine.cuda.sampling.captured_draws import DrawCaptured
from worker.engine.cuda.sampling.device_logprobs import DeviceLogprobs
from worker.engine.cuda.sampling.draws import DeviceParams, Draws
from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.grammar.grammar_matcher import Bitmask
from worker.engine.sampling.row_logprobs import Alternatives
from worker.engine.sampling.row_params import RowParams
from worker.engine.sampling.sampling_batch import SamplingBatch


class DeviceLogits:
    """A `LogitPlace`: what the host has is sent there, without waiting. Part of enqueued work."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def put(self, values: torch.Tensor) -> torch.Tensor:
        return upload(self._device, values.numpy())

    def forbid(self, logits: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
        words = upload(self._device, bitmask)
        bits = words[:, :, None] >> torch.arange(32, device=words.device, dtype=torch.int32)
        is_forbidden = (bits & 1).flatten(1)[:, : logits.shape[1]] == 0
        there = upload(self._device, np.array(rows, np.int64))
        logits.index_copy_(0, there, logits[there].masked_fill_(is_forbidden, -torch.inf))


class DeviceSamples(NamedTuple):
    """What a step chose."""

    token_ids: torch.Tensor  # [num_rows] int64, on the device; negative: draw_code.py says why
    logprobs: DeviceLogprobs | None
    are_kept: bool = False  # for the steps that await them


class GpuSampler:
    """As `Sampler`, in the same order: biases, masks, penalties, then the draw."""

    def __init__(self, device: GpuDevice, draws: Draws) -> None:
        self._device = device
        self._place = DeviceLogits(device)
        self._draws = draws
        self._host_params = RowParams.of([])
        self._params: DeviceParams | None = None

    def forward(
        self,
        logits: torch.Tensor,
        batch: SamplingBatch,
        draw_captured: DrawCaptured | None = None,  # from these logits
    ) -> DeviceSamples:
        """`logits` [num_rows, vocab_size] float32, overwritten. Part of enqueued work."""
        asked = batch.params.logprob_rows
        if draw_captured is not None and not asked:
            batch.change(logits, self._place)
            return DeviceSamples(draw_captured(batch.params), None, are_kept=True)
        params = self._device_params(batch.params)
        positions = upload(self._device, np.array(batch.positions, np.int64))
        if not asked:
            batch.change(logits, self._place)
            return DeviceSamples(self._draws.draw(logits, params, positions), None)
        asked_rows = upload(self._device, np.array([row for row, _ in asked], np.int64))
        raw = logits[asked_rows]
        batch.change(logits, self._place)
        token_ids = self._draws.draw(logits, params, positions)
        logprobs = DeviceLogprobs.of(self._device, asked, raw, token_ids[asked_rows])
        return DeviceSamples(token_ids, logprobs)

    def _device_params(self, params: RowParams) -> DeviceParams:
        if self._params is None or params is not self._host_params:
            self._params = DeviceParams.of(params, self._device)
            self._host_params = params
        return self._params


def most_demanding(num_rows: int) -> SamplingBatch:
    """What takes the most memory: a threshold and all logprobs for each row."""
    params = RowParams(
        reqs=[],
        temperature=np.ones(num_rows, np.float32),
        top_k=np.zeros(num_rows, np.int64),
        top_p=np.full(num_rows, 0.9, np.float32),
        min_p=np.zeros(num_rows, np.float32),
        seeds=[0] * num_rows,
        logprob_rows=[(row, Alternatives(MAX_TOP_LOGPROBS)) for row in range(num_rows)],
        wanted_rows=[],
        processor_ids={},
    )
    return SamplingBatch(params, [0] * num_rows, [])
