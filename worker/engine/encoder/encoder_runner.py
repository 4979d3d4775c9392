"""Runs planned steps of a cross-encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from worker.engine.device.gpu_device import GpuDevice, Moment, download, upload
from worker.engine.device.halving import compute_halved, has_memory
from worker.engine.encoder.encoder_model import EncoderModel
from worker.engine.encoder.padded_texts import EncoderInput, PaddedTexts
from worker.engine.request.req import Req
from worker.engine.request.sample_error import SampleError
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import StepHandle, StepResult
from worker.engine.sampling.pooler import score_vector


class EncoderRunner:
    """Computes a prompt when its last chunk comes, as a whole: earlier chunks only count."""

    def __init__(self, model: EncoderModel, device: GpuDevice) -> None:
        self._model = model
        self._device = device

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        reqs: Sequence[Req] = [entry.req for entry in batch.others if entry.gives_embedding]
        parts = compute_halved(reqs, self._compute, _halves) if reqs else []
        num_fitting = None if len(parts) < 2 else max(part.num_tokens for part in parts)
        return _EncoderStep(self._device.mark(), parts, num_fitting)

    def _compute(self, reqs: Sequence[Req]) -> _Texts | None:
        """None: the GPU has no memory for them now."""
        inputs = [
            EncoderInput(req.token_ids, 0 if req.pooling is None else req.pooling.second_start)
            for req in reqs
        ]
        groups = PaddedTexts.groups(inputs, self._model.pad_token_id)
        logits: list[torch.Tensor] = []

        @torch.inference_mode()
        def work() -> None:
            logits.extend(download(self._device, self._logits(group)) for group in groups)

        return _Texts(reqs, groups, logits) if has_memory(self._device, work) else None

    def _logits(self, texts: PaddedTexts) -> torch.Tensor:
        """[num_texts, num_outputs] float32."""
        mask = None if texts.mask is None else upload(self._device, texts.mask)
        return self._model.logits(
            upload(self._device, texts.input_ids), upload(self._device, texts.token_types), mask
        )


def _halves(reqs: Sequence[Req]) -> tuple[Sequence[Req], Sequence[Req]] | None:
    middle = len(reqs) // 2
    return (reqs[:middle], reqs[middle:]) if middle else None


@dataclass(frozen=True, slots=True, eq=False)
class _Texts:
    """Prompts that are computed at once."""

    reqs: Sequence[Req]
    groups: Sequence[PaddedTexts]
    logits: Sequence[torch.Tensor]  # of each group, on the host, filled when the moment has come

    @property
    def num_tokens(self) -> int:
        return sum(req.num_tokens for req in self.reqs)

    def vectors(self) -> Iterator[tuple[int, bytes | SampleError]]:
        """With the run id of each."""
        for group, rows in zip(self.groups, self.logits, strict=True):
            for idx, row in zip(group.idx, rows, strict=True):
                req = self.reqs[idx]
                if req.pooling is not None:
                    yield req.run_id, score_vector(row, req.pooling)


@dataclass(frozen=True, slots=True, eq=False)
class _EncoderStep:
    """The handle of a launched step."""

    moment: Moment
    parts: Sequence[_Texts]
    num_fitting: int | None

    @torch.inference_mode()
    def collect(self) -> StepResult:
        self.moment.wait()
        vectors = dict(pair for part in self.parts for pair in part.vectors())
        return StepResult([], embeddings=vectors, num_fitting=self.num_fitting)
