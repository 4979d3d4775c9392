"""One row of the table of routes: a path, a method, and who answers there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import ErrorBody
from frontend.jobs.job import Caller
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.cluster_events import ClusterEvents
from frontend.text.event_writer import error_body
from shared.protocol.reply import Surface

# Of routes that have several: without /v1 for clients whose base URL has none.
CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
CHAT_BATCH_PATH = "/v1/chat/completions/batch"
EMBEDDING_PATHS = ("/v1/embeddings", "/embeddings")
RESPONSE_PATHS = ("/v1/responses", "/responses")
MODEL_PATHS = ("/v1/models", "/models")
SCORE_PATHS = ("/v1/score", "/score")
CLASS_PATHS = ("/classify", "/v1/classify")
POOLING_PATHS = ("/pooling", "/v1/pooling")
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")

AUDIO_PATHS = {
    Surface.TRANSCRIPTION: "/v1/audio/transcriptions",
    Surface.TRANSLATION: "/v1/audio/translations",
}

RouteAnswer: TypeAlias = Response | AnswerResponse | ClusterEvents
Handler: TypeAlias = Callable[[Request, Caller], Awaitable[RouteAnswer]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """`path` is written as OpenAPI writes it, with its parameters in braces."""

    method: str
    path: str
    handler: Handler
    error_body: ErrorBody = error_body  # in the shape of the route's API
    is_open: bool = False  # to callers without a key


class RouteTable(Protocol):
    """The routes of one surface."""

    def routes(self) -> Sequence[ApiRoute]: ...
