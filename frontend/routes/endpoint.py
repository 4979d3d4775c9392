"""What stands between a route and its handler: the key, the errors, the count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from frontend.http.error_response import ErrorBody, error_response
from frontend.http.http_request import CallerReader, HttpPresence
from frontend.inference.telemetry.access_log import log_refused
from frontend.jobs.job import Caller
from frontend.metrics import FrontendMetrics
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.cluster_events import ClusterEvents
from frontend.text.event_writer import error_body
from shared.errors import InternalError, RequestError
from shared.telemetry.log import get_logger

log = get_logger(__name__)

Answer = Response | AnswerResponse | ClusterEvents
Handler = Callable[[Request, Caller], Awaitable[Answer]]
_NOBODY = Caller()


class Endpoint:
    """One route: checks the key, turns errors into answers, counts."""

    def __init__(
        self,
        route: str,
        handler: Handler,
        callers: CallerReader,
        metrics: FrontendMetrics,
        *,
        is_open: bool,
        error_body: ErrorBody = error_body,
    ) -> None:
        self._error_body = error_body
        self._route = route
        self._handler = handler
        self._callers = callers
        self._metrics = metrics
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._response(request)
        try:
            await response(scope, receive, send)
        finally:
            self._metrics.requests.labels("http", self._route, response.status_code).inc()

    async def _response(self, request: Request) -> Answer:
        caller = _NOBODY
        try:
            if not self._is_open:
                presence = HttpPresence(request.receive)
                caller = self._callers.caller(request.headers, "http", presence)
            return await self._handler(request, caller)
        except RequestError as exc:
            error = exc
        except Exception:
            log.exception("request_failed", route=self._route)
            error = InternalError("The frontend could not handle the request.")
        log_refused(error, self._route, "http", caller)
        return error_response(error, body=self._error_body)


class Endpoints:
    """The endpoints of one path, by method."""

    def __init__(self, by_method: dict[str, Endpoint]) -> None:
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._by_method[method](scope, receive, send)
