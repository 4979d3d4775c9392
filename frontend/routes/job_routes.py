"""The routes whose bodies become jobs: OpenAI's, `/generate` and `/invocations`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from starlette.requests import Request

from frontend.jobs.job import Caller
from frontend.models.model_directory import ModelDirectory
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import (
    CHAT_BATCH_PATH,
    CHAT_PATHS,
    EMBEDDING_PATHS,
    RERANK_PATHS,
    RESPONSE_PATHS,
    SCORE_PATHS,
    ApiRoute,
)
from frontend.routes.job_starts import JobStarts
from frontend.surfaces.invocations import invocation
from shared.protocol.reply import Surface

_SURFACES: Iterable[tuple[Surface, Sequence[str]]] = (
    (Surface.CHAT, CHAT_PATHS),
    (Surface.CHAT_BATCH, (CHAT_BATCH_PATH,)),
    (Surface.COMPLETIONS, ("/v1/completions",)),
    (Surface.EMBEDDINGS, EMBEDDING_PATHS),
    (Surface.SCORE, SCORE_PATHS),
    (Surface.RERANK, RERANK_PATHS),
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
        ]

    async def _invoke(self, request: Request, caller: Caller) -> AnswerResponse:
        return await self._starts.start(partial(invocation, models=self._models), request, caller)
