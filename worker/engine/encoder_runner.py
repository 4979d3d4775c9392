"""Runs a planned step of a cross-encoder."""

from __future__ import annotations

import torch

from worker.engine.models.encoder_model import EncoderInput, EncoderModel
from worker.engine.pooler import score_vector
from worker.engine.schedule_batch import ScheduleBatch
from worker.engine.step_result import DoneStep, StepResult


class EncoderRunner:
    """Computes a prompt when its last chunk comes, as a whole: earlier chunks only count."""

    def __init__(self, model: EncoderModel) -> None:
        self._model = model

    @torch.inference_mode()
    def launch(self, batch: ScheduleBatch) -> DoneStep:
        reqs = [entry.req for entry in batch.others if entry.gives_embedding]
        if not reqs:
            return DoneStep(StepResult([]))
        inputs = [
            EncoderInput(req.token_ids, 0 if req.pooling is None else req.pooling.second_start)
            for req in reqs
        ]
        logits = self._model.logits(inputs)
        vectors = {
            req.run_id: score_vector(row, req.pooling)
            for req, row in zip(reqs, logits, strict=True)
            if req.pooling is not None
        }
        return DoneStep(StepResult([], embeddings=vectors))
