"""Runs planned steps of a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.cuda.gpu_device import GpuDevice, Moment, download, upload
from worker.engine.models.encoder_model import EncoderModel
from worker.engine.padded_texts import EncoderInput, PaddedTexts
from worker.engine.pooler import score_vector
from worker.engine.req import Req
from worker.engine.schedule_batch import ScheduleBatch
from worker.engine.step_result import StepHandle, StepResult


class EncoderRunner:
    """Computes a prompt when its last chunk comes, as a whole: earlier chunks only count."""

    def __init__(self, model: EncoderModel, device: GpuDevice) -> None:
        self._model = model
        self._device = device

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        reqs = [entry.req for entry in batch.others if entry.gives_embedding]
        inputs = [
            EncoderInput(req.token_ids, 0 if req.pooling is None else req.pooling.second_start)
            for req in reqs
        ]
        groups = PaddedTexts.groups(inputs, self._model.pad_token_id)
        logits: list[torch.Tensor] = []

        @torch.inference_mode()
        def work() -> None:
            logits.extend(download(self._device, self._logits(group)) for group in groups)

        self._device.enqueue(work)
        return _EncoderStep(self._device.mark(), reqs, groups, logits)

    def _logits(self, texts: PaddedTexts) -> torch.Tensor:
        """[num_texts, num_outputs] float32."""
        mask = None if texts.mask is None else upload(self._device, texts.mask)
        return self._model.logits(
            upload(self._device, texts.input_ids), upload(self._device, texts.token_types), mask
        )


@dataclass(frozen=True, slots=True, eq=False)
class _EncoderStep:
    """The handle of a launched step."""

    moment: Moment
    reqs: Sequence[Req]
    groups: Sequence[PaddedTexts]
    logits: Sequence[torch.Tensor]  # of each group, on the host, filled when the moment has come

    @torch.inference_mode()
    def collect(self) -> StepResult:
        self.moment.wait()
        vectors = {}
        for group, rows in zip(self.groups, self.logits, strict=True):
            for idx, row in zip(group.idx, rows, strict=True):
                req = self.reqs[idx]
                if req.pooling is not None:
                    vectors[req.run_id] = score_vector(row, req.pooling)
        return StepResult([], embeddings=vectors)
