"""The HTTP surface: its routes, and what holds for all of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from frontend.cluster.request_path_service import PathService
from frontend.fields.request_body import parse_object
from frontend.http.client_id_header import telling_client_id
from frontend.http.error_response import ErrorBody, error_response, json_response
from frontend.http.http_request import CallerReader, read_body
from frontend.inference.inference import Inference
from frontend.inference.telemetry.access_log import log_refused
from frontend.jobs.job import Caller
from frontend.metrics import FrontendMetrics
from frontend.models.model_directory import ModelDirectory
from frontend.openapi.document import (
    CHAT_PATHS,
    EMBEDDING_PATHS,
    MODEL_PATHS,
    RERANK_PATHS,
    RESPONSE_PATHS,
    SCORE_PATHS,
    openapi_document,
)
from frontend.page import page_libraries
from frontend.page.page_document import PageDocument
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.batch_routes import BatchRoutes
from frontend.routes.browser_guard import BrowserGuard
from frontend.routes.cluster_routes import ClusterRoutes
from frontend.routes.cors import Cors
from frontend.routes.endpoint import Endpoint, Endpoints, Handler
from frontend.routes.file_routes import FileRoutes
from frontend.routes.load_routes import LoadRoutes
from frontend.routes.model_object import model_list, model_object
from frontend.routes.ollama_routes import OllamaRoutes
from frontend.routes.route_hints import hint
from frontend.routes.token_routes import TokenRoutes
from frontend.stored.erasing.erasing_service import ErasingService
from frontend.stored.kept_responses import Responses, query_flag, query_number
from frontend.surfaces.anthropic.errors import message_error_body
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.invocations import ReadInvocation, invocation
from frontend.surfaces.ollama.errors import ollama_error_body
from frontend.text.event_id import parse_event_id
from frontend.text.event_writer import encode_json, error_body
from shared.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
)
from shared.protocol.reply import Surface
from shared.status.health import (
    LIVE_PATH,
    READY_PATH,
    Checkup,
    HealthAnswer,
    live_answer,
    ready_answer,
)


class App:
    """The ASGI application."""

    def __init__(
        self,
        inference: Inference,
        responses: Responses,
        models: ModelDirectory,
        callers: CallerReader,
        metrics: FrontendMetrics,
        checkup: Callable[[], Checkup],
        files: FileRoutes,
        batches: BatchRoutes,
        tokens: TokenRoutes,
        loads: LoadRoutes,
        cluster: ClusterRoutes,
        paths: PathService,
        erasing: ErasingService,
        messages: MessageRequests,
        ollama: OllamaRoutes,
        page: PageDocument,
        *,
        max_body_bytes: int,
        ping_interval_s: float,
        cors_origins: tuple[str, ...] = (),
        guard: BrowserGuard | None = None,
    ) -> None:
        self._inference = inference
        self._responses = responses
        self._models = models
        self._callers = callers
        self._metrics = metrics
        self._checkup = checkup
        self._files = files
        self._batches = batches
        self._tokens = tokens
        self._loads = loads
        self._cluster = cluster
        self._path_desk = paths
        self._erasing = erasing
        self._messages = messages
        self._ollama = ollama
        self._page = page
        self._max_body_bytes = max_body_bytes
        self._ping_interval_s = ping_interval_s
        self._cors = Cors(cors_origins)
        self._guard = guard
        self._version = importlib.metadata.version("jetflock")
        self._openapi = encode_json(openapi_document(self._version))
        self._router = Router(self._routes(), redirect_slashes=False)

    @property
    def paths(self) -> list[str]:
        """Of all routes, with their parameters as OpenAPI writes them."""
        return [route.path_format for route in self._router.routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # starlette then raises for unknown paths and methods
        send = telling_client_id(scope, send)
        if self._inference.is_draining:
            send = _closing(send)
        refusal = None if self._guard is None else self._guard.refusal(scope)
        if refusal is not None:
            await self._refuse(refusal)(scope, receive, send)
            return
        if self._cors.is_on:
            send = self._cors.telling(scope, send)
            if scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, send)
                return
        try:
            await self._router(scope, receive, send)
        except HTTPException as exc:
            error, headers = _routing_error(exc, scope, self.paths)
            body = ollama_error_body if scope["path"].startswith("/api/") else error_body
            await self._refuse(error, headers, body)(scope, receive, send)

    def _refuse(
        self,
        error: RequestError,
        headers: dict[str, str] | None = None,
        body: ErrorBody = error_body,
    ) -> Response:
        """Before any route has seen it."""
        self._metrics.requests.labels("http", "unknown", error.status_code).inc()
        log_refused(error, "unknown", "http")
        return error_response(error, headers, body)

    def _routes(self) -> list[Route]:
        def route(path: str, method: str, handler: Handler, *, is_open: bool = False) -> Route:
            endpoint = Endpoint(path, handler, self._callers, self._metrics, is_open=is_open)
            return Route(path, endpoint, methods=[method])

        def told(path: str, method: str, handler: Handler, error_body: ErrorBody) -> Route:
            endpoint = Endpoint(
                path, handler, self._callers, self._metrics, is_open=False, error_body=error_body
            )
            return Route(path, endpoint, methods=[method])

        def messages(path: str, handler: Handler) -> Route:
            return told(path, "POST", handler, message_error_body)

        def ollama(path: str, method: str, handler: Handler) -> Route:
            return told(path, method, handler, ollama_error_body)

        def routes(path: str, **handlers: Handler) -> Route:
            endpoints = {
                method: Endpoint(path, handler, self._callers, self._metrics, is_open=False)
                for method, handler in handlers.items()
            }
            return Route(path, Endpoints(endpoints), methods=list(endpoints))

        return [
            route("/", "GET", self._get_page, is_open=True),
            route(page_libraries.ROUTE, "GET", self._get_page_library, is_open=True),
            *(route(path, "POST", self._starter(Surface.CHAT)) for path in CHAT_PATHS),
            route("/v1/completions", "POST", self._starter(Surface.COMPLETIONS)),
            *(route(path, "POST", self._starter(Surface.EMBEDDINGS)) for path in EMBEDDING_PATHS),
            *(route(path, "POST", self._starter(Surface.SCORE)) for path in SCORE_PATHS),
            *(route(path, "POST", self._starter(Surface.RERANK)) for path in RERANK_PATHS),
            route("/invocations", "POST", self._invoke),
            route("/generate", "POST", self._starter(Surface.GENERATE)),
            *(route(path, "POST", self._starter(Surface.RESPONSES)) for path in RESPONSE_PATHS),
            messages("/v1/messages", self._starter(Surface.MESSAGES)),
            messages("/v1/messages/count_tokens", self._count_tokens),
            ollama("/api/chat", "POST", self._ollama.chat),
            ollama("/api/generate", "POST", self._ollama.generate),
            ollama("/api/embed", "POST", self._ollama.embed),
            ollama("/api/show", "POST", self._ollama.show),
            ollama("/api/tags", "GET", self._ollama.tags),
            ollama("/api/ps", "GET", self._ollama.running),
            ollama("/api/version", "GET", self._ollama.version),
            route("/v1/responses/{response_id}", "GET", self._get_response),
            route("/v1/responses/{response_id}", "DELETE", self._delete_response),
            route("/v1/responses/{response_id}/cancel", "POST", self._cancel_response),
            route("/v1/responses/{response_id}/input_items", "GET", self._list_input_items),
            routes("/v1/streams/{rid}", GET=self._resume, DELETE=self._erase),
            route("/v1/streams/{rid}/path", "GET", self._path_desk.path),
            route("/abort_request", "POST", self._abort),
            *(route(path, "GET", self._list_models) for path in MODEL_PATHS),
            route("/v1/models/{name:path}", "GET", self._get_model),
            routes("/v1/files", POST=self._files.upload, GET=self._files.list_files),
            routes("/v1/files/{file_id}", GET=self._files.retrieve, DELETE=self._files.delete),
            route("/v1/files/{file_id}/content", "GET", self._files.content),
            routes("/v1/batches", POST=self._batches.create, GET=self._batches.list_batches),
            route("/v1/batches/{batch_id}", "GET", self._batches.retrieve),
            route("/v1/batches/{batch_id}/cancel", "POST", self._batches.cancel),
            route("/tokenize", "POST", self._tokens.tokenize),
            route("/detokenize", "POST", self._tokens.detokenize),
            route("/apply-template", "POST", self._tokens.apply_template),
            route("/v1/tokenizer_info", "GET", self._tokens.info),
            route("/tokenizer_info", "GET", self._tokens.info),
            route("/props", "GET", self._tokens.props),
            route("/v1/loads", "GET", self._loads.loads),
            route("/cluster", "GET", self._cluster.cluster),
            route("/cluster/events", "GET", self._cluster.events),
            route("/health", "GET", self._live, is_open=True),
            route(LIVE_PATH, "GET", self._live, is_open=True),
            route(READY_PATH, "GET", self._ready, is_open=True),
            route("/live", "GET", self._live, is_open=True),
            route("/ping", "GET", self._ready, is_open=True),
            route("/ready", "GET", self._ready, is_open=True),
            route("/version", "GET", self._get_version, is_open=True),
            route("/openapi.json", "GET", self._get_openapi, is_open=True),
            route("/metrics", "GET", self._get_metrics),
        ]

    def _starter(self, surface: Surface) -> Handler:
        async def read(body: dict[str, Any]) -> tuple[Surface, dict[str, Any]]:
            return surface, body

        return partial(self._start, read)

    async def _invoke(self, request: Request, caller: Caller) -> AnswerResponse:
        return await self._start(partial(invocation, models=self._models), request, caller)

    async def _start(
        self, read: ReadInvocation, request: Request, caller: Caller
    ) -> AnswerResponse:
        raw = await read_body(request, self._max_body_bytes)
        last_event_id = request.headers.get("last-event-id")
        if last_event_id:
            event_id = parse_event_id(last_event_id)
            answer = await self._inference.resume(event_id.group_id, event_id, caller, stream=True)
        else:
            surface, body = await read(parse_object(raw))
            answer = await self._inference.start(surface, body, caller)
        return AnswerResponse(answer, self._ping_interval_s)

    async def _count_tokens(self, request: Request, caller: Caller) -> Response:
        self._inference.admit_call(caller)
        raw = parse_object(await read_body(request, self._max_body_bytes))
        answer = encode_json({"input_tokens": await self._messages.count(raw, caller)})
        return json_response(answer, headers=caller.unknown.headers())

    async def _get_response(self, request: Request, caller: Caller) -> Response | AnswerResponse:
        response_id, query = request.path_params["response_id"], request.query_params
        starting_after = query_number(query, "starting_after", 0, 1 << 53)
        if query_flag(query, "stream"):
            number = -1 if starting_after is None else starting_after
            answer = await self._responses.stream(response_id, number, caller)
            return AnswerResponse(answer, self._ping_interval_s)
        if starting_after is not None:
            raise InvalidRequest("'starting_after' is of a stream", param="starting_after")
        return json_response(encode_json(await self._responses.get(response_id, caller)))

    async def _delete_response(self, request: Request, caller: Caller) -> Response:
        deleted = await self._responses.delete(request.path_params["response_id"], caller)
        return json_response(encode_json(deleted))

    async def _cancel_response(self, request: Request, caller: Caller) -> Response:
        response = await self._responses.cancel(request.path_params["response_id"], caller)
        return json_response(encode_json(response))

    async def _list_input_items(self, request: Request, caller: Caller) -> Response:
        items = await self._responses.input_items(
            request.path_params["response_id"], request.query_params, caller
        )
        return json_response(encode_json(items))

    async def _resume(self, request: Request, caller: Caller) -> AnswerResponse:
        rid = request.path_params["rid"]
        query = request.query_params
        last_event_id = request.headers.get("last-event-id") or query.get("last_event_id")
        event_id = parse_event_id(last_event_id) if last_event_id else None
        if event_id is not None and event_id.group_id != rid:
            raise InvalidRequest(
                f"Last-Event-ID belongs to stream {event_id.group_id}", param="Last-Event-ID"
            )
        stream = query.get("stream", "true").lower() not in ("false", "0")
        if not stream:
            event_id = None
        answer = await self._inference.resume(rid, event_id, caller, stream=stream)
        return AnswerResponse(answer, self._ping_interval_s)

    async def _erase(self, request: Request, caller: Caller) -> Response:
        return json_response(
            encode_json(await self._erasing.erase(request.path_params["rid"], caller))
        )

    async def _abort(self, request: Request, caller: Caller) -> Response:
        body = parse_object(await read_body(request, self._max_body_bytes))
        num_ended = await self._inference.abort(rid_of_body(body), caller)
        return json_response(encode_json({"rid": body["rid"], "num_aborted": num_ended}))

    async def _list_models(self, request: Request, caller: Caller) -> Response:
        return json_response(model_list(self._models))

    async def _get_model(self, request: Request, caller: Caller) -> Response:
        model = await self._models.find(request.path_params["name"])
        use_defaults = self._models.use_model_defaults
        return json_response(encode_json(model_object(model, use_model_defaults=use_defaults)))

    async def _live(self, request: Request, caller: Caller) -> Response:
        return _health_response(live_answer(self._checkup()))

    async def _ready(self, request: Request, caller: Caller) -> Response:
        return _health_response(ready_answer(self._checkup()))

    async def _get_version(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json({"version": self._version}))

    async def _get_page(self, request: Request, caller: Caller) -> Response:
        return self._page.response(request)

    async def _get_page_library(self, request: Request, caller: Caller) -> Response:
        return self._page.libraries.response(request)

    async def _get_openapi(self, request: Request, caller: Caller) -> Response:
        return json_response(self._openapi)

    async def _get_metrics(self, request: Request, caller: Caller) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._metrics.registry), headers={"content-type": content_type})


def _closing(send: Send) -> Send:
    """Whoever asks again is to ask another frontend: each answer ends its connection."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return send_and_close


def _health_response(answer: HealthAnswer) -> Response:
    return json_response(answer.body, answer.status_code)


def rid_of_body(body: dict[str, Any]) -> str:
    """Raises InvalidRequest."""
    rid = body.get("rid")
    if not isinstance(rid, str) or not rid:
        raise InvalidRequest("'rid' is required: the id of a request", param="rid")
    return rid


def _routing_error(
    exc: HTTPException, scope: Scope, served: Collection[str]
) -> tuple[RequestError, dict[str, str]]:
    path, method = scope["path"][:200], scope["method"]
    headers = dict(exc.headers or {})
    if exc.status_code == 405:
        allowed = ", ".join(sorted(headers.get("Allow", "").split(", ")))
        error = MethodNotAllowed(f"{method} is not allowed on {path}; use {allowed}.")
        return error, {"allow": allowed}
    words = f"There is nothing at {path}. {hint(path, served)}"
    return NotFound(words.strip()), headers
