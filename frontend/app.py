"""The HTTP surface: its routes, their endpoints, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from frontend.http.connected_client import ConnectedClient
from frontend.http.error_response import ErrorBody, error_response
from frontend.http.http_request import CallerReader, HttpPresence, headers_of
from frontend.inference.inference import Inference
from frontend.inference.telemetry.access_log import log_refused
from frontend.jobs.client_request_id import HEADER, client_request_id
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute, RouteAnswer, RouteTable
from frontend.routes.browser_guard import BrowserGuard
from frontend.routes.cors import Cors
from frontend.routes.route_hints import hint
from frontend.surfaces.ollama.ollama_answer import ollama_error_body
from frontend.text.event_writer import error_body
from shared.errors import InternalError, InvalidRequest, MethodNotAllowed, NotFound, RequestError
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import EventCounter

_NOBODY = Caller()

log = get_logger(__name__)


class Endpoint:
    """One route: checks the key, turns errors into answers, and counts these."""

    def __init__(self, route: ApiRoute, callers: CallerReader, answered: EventCounter) -> None:
        self._route = route
        self._callers = callers
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._response(request)
        try:
            await response(scope, receive, send)
        finally:
            self._answered.labels("http", self._route.path, response.status_code).inc()

    async def _response(self, request: Request) -> RouteAnswer:
        caller = _NOBODY
        try:
            if not self._route.is_open:
                scope = request.scope
                presence = HttpPresence(ConnectedClient.of(scope))
                caller = self._callers.caller(headers_of(scope), "http", presence)
            return await self._route.handler(request, caller)
        except RequestError as exc:
            error = exc
        except Exception:
            log.exception("request_failed", route=self._route.path)
            error = InternalError("The frontend could not handle the request.")
        log_refused(error, self._route.path, "http", caller)
        return error_response(error, body=self._route.error_body)


class Endpoints:
    """The endpoints of one path, by method."""

    def __init__(self, by_method: Mapping[str, Endpoint]) -> None:
        self._by_method = by_method
        self.methods = list(by_method)  # HEAD goes without saying where there is GET

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._by_method[method](scope, receive, send)


class App:
    """The ASGI application of some tables of routes."""

    def __init__(
        self,
        tables: Iterable[RouteTable],
        inference: Inference,
        callers: CallerReader,
        answered: EventCounter,
        cors: Cors,
        guard: BrowserGuard | None,
    ) -> None:
        self._inference = inference
        self._callers = callers
        self._answered = answered
        self._cors = cors
        self._guard = guard
        by_path = self._by_path(route for table in tables for route in table.routes())
        self._plain = {path: each for path, each in by_path.items() if "{" not in path}
        self._router = Router(
            [Route(path, each, methods=each.methods) for path, each in by_path.items()],
            redirect_slashes=False,
        )

    @property
    def paths(self) -> list[str]:
        """The paths of all routes, with their parameters as OpenAPI writes them."""
        return [route.path_format for route in self._router.routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # starlette then raises for unknown paths and methods
        send = with_client_id(scope, send)
        if self._inference.is_draining:
            send = _closing(send)
        refusal = None if self._guard is None else self._guard.refusal(scope)
        if refusal is not None:
            await self._refuse(refusal)(scope, receive, send)
            return
        if self._cors.is_on:
            send = self._cors.with_headers(scope, send)
            if scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, send)
                return
        endpoints = self._plain.get(scope["path"])
        try:
            if endpoints is not None and scope["method"] in endpoints.methods:
                await endpoints(scope, receive, send)
            else:
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
        """Answers with an error before any route has seen the request."""
        self._answered.labels("http", "unknown", error.status_code).inc()
        log_refused(error, "unknown", "http")
        return error_response(error, headers, body)

    def _by_path(self, routes: Iterable[ApiRoute]) -> dict[str, Endpoints]:
        methods: dict[str, dict[str, Endpoint]] = {}
        for route in routes:
            by_method = methods.setdefault(route.path, {})
            assert route.method not in by_method, f"{route.method} {route.path} has two rows"
            by_method[route.method] = Endpoint(route, self._callers, self._answered)
        return {path: Endpoints(by_method) for path, by_method in methods.items()}


def _closing(send: Send) -> Send:
    """Whoever asks again is to ask another frontend: each answer ends its connection."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return send_and_close


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


def with_client_id(scope: Scope, send: Send) -> Send:
    """Every answer to a client that named its request has that name."""
    try:
        name = client_request_id(headers_of(scope))
    except InvalidRequest:
        return send
    if not name:
        return send

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[HEADER] = name
        await send(message)

    return send_with_id
