"""`GET /cluster`, `GET /cluster/events` and `GET /cluster/history`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.cluster_history import ClusterHistory
from frontend.cluster.cluster_views import ClusterViews
from frontend.cluster.view import Viewer
from frontend.http.error_response import json_response
from frontend.http.http_request import CallerReader
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.routes.cluster_events import ClusterEvents
from frontend.text.event_writer import encode_json


class ClusterRoutes:
    """Handlers of the HTTP surface. `over` is set when this frontend is about to stop."""

    def __init__(
        self,
        views: ClusterViews,
        history: ClusterHistory,
        callers: CallerReader,
        over: asyncio.Event,
    ) -> None:
        self._views = views
        self._history = history
        self._callers = callers
        self._over = over

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("GET", "/cluster", self.cluster),
            ApiRoute("GET", "/cluster/events", self.events),
            ApiRoute("GET", "/cluster/history", self.history),
        ]

    async def cluster(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json(await self._views.view(Viewer.of(caller))))

    async def history(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json(self._history.view(Viewer.of(caller))))

    async def events(self, request: Request, caller: Caller) -> ClusterEvents:
        async def look() -> dict[str, Any]:
            """The key may have been taken out since."""
            now = self._callers.caller(request.headers, "http")
            return await self._views.view(Viewer.of(now))

        return ClusterEvents(await self._views.view(Viewer.of(caller)), look, self._over)
