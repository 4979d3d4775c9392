"""What stands between a route and its handler: the key, the errors, the count."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from frontend.http.connected_client import ConnectedClient
from frontend.http.error_response import error_response
from frontend.http.http_request import CallerReader, HttpPresence, headers_of
from frontend.inference.telemetry.access_log import log_refused
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute, RouteAnswer
from shared.errors import InternalError, RequestError
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import children_of

log = get_logger(__name__)

_NOBODY = Caller()


class Endpoint:
    """One route: checks the key, turns errors into answers, counts."""

    def __init__(self, route: ApiRoute, callers: CallerReader, answered: Counter) -> None:
        self._route = route
        self._callers = callers
        self._answered = children_of(answered)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._response(request)
        try:
            await response(scope, receive, send)
        finally:
            self._answered("http", self._route.path, response.status_code).inc()

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
