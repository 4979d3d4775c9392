"""The routes whose bodies become jobs: OpenAI's, `/generate` and `/invocations`."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request

from frontend.jobs.job import Caller
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import (
    CHAT_BATCH_PATH,
    CHAT_PATHS,
    CLASS_PATHS,
    EMBEDDING_PATHS,
    POOLING_PATHS,
    RERANK_PATHS,
    RESPONSE_PATHS,
    SCORE_PATHS,
    ApiRoute,
)
from frontend.routes.job_starts import JobStarts
from frontend.surfaces.invocations import invocation
from shared.protocol.hearing_card import SAMPLE_RATE
from shared.protocol.reply import Surface

PROBE_S = 20.0  # in the queue, as long as SGLang waits


_SURFACES: Iterable[tuple[Surface, Sequence[str]]] = (
    (Surface.CHAT, CHAT_PATHS),
    (Surface.CHAT_BATCH, (CHAT_BATCH_PATH,)),
    (Surface.COMPLETIONS, ("/v1/completions",)),
    (Surface.EMBEDDINGS, EMBEDDING_PATHS),
    (Surface.SCORE, SCORE_PATHS),
    (Surface.RERANK, RERANK_PATHS),
    (Surface.CLASSIFY, CLASS_PATHS),
    (Surface.POOLING, POOLING_PATHS),
    (Surface.GENERATE, ("/generate",)),
    (Surface.INFILL, ("/infill",)),
    (Surface.RESPONSES, RESPONSE_PATHS),
)


class JobRoutes:
    """Handlers of the HTTP surface: one for each API, and one that finds out which it is."""

    def __init__(self, starts: JobStarts, models: ModelDirectory) -> None:
        self._starts = starts
        self._models = models

    def routes(self) -> Sequence[ApiRoute]:
        return [
            *(
                ApiRoute("POST", path, self._starts.of(surface))
                for surface, paths in _SURFACES
                for path in paths
            ),
            ApiRoute("POST", "/invocations", self._invoke),
            ApiRoute("GET", "/health_generate", self._probe),
        ]

    async def _probe(self, request: Request, caller: Caller) -> AnswerResponse:
        """One token through queue, worker and log, or what else the model makes."""
        name = request.query_params.get("model")
        model = await (self._models.model(name) if name else self._models.only_model())
        surface, body = probe_of(model)
        return await self._starts.begin(surface, body, replace(caller, queue_timeout_s=PROBE_S))

    async def _invoke(self, request: Request, caller: Caller) -> AnswerResponse:
        return await self._starts.start(partial(invocation, models=self._models), request, caller)


def probe_of(model: ServedModel) -> tuple[Surface, dict[str, Any]]:
    """The smallest body that the model answers."""
    if model.card.can_generate:
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        return Surface.GENERATE, {
            "model": model.name,
            "input_ids": [0],
            "sampling_params": sampling,
        }
    if model.card.hearing is not None:
        return Surface.TRANSCRIPTION, {"model": model.name, "file": _silence()}
    if model.card.embedding is not None:
        return Surface.EMBEDDINGS, {"model": model.name, "input": [0]}
    if model.card.classifier is not None:
        return Surface.CLASSIFY, {"model": model.name, "input": [0]}
    return Surface.SCORE, {"model": model.name, "text_1": "a", "text_2": "a"}


def _silence() -> str:
    """As much of it as a model hears at least: a WAV file in base64."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(bytes(2 * SAMPLE_RATE // 5))
    return base64.b64encode(data.getvalue()).decode()
