"""`GET /cluster` and `GET /cluster/events`."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.cluster_board import ClusterBoard, ClusterLook
from frontend.cluster.view import Viewer, cluster_view
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
        board: ClusterBoard,
        callers: CallerReader,
        frontend_id: str,
        admin_url: str,
        over: asyncio.Event,
    ) -> None:
        self._board = board
        self._seen: ClusterLook | None = None
        self._views: dict[Viewer, dict[str, Any]] = {}  # of it
        self._callers = callers
        self._over = over
        self._head: dict[str, Any] = {
            "version": importlib.metadata.version("jetflock"),
            "frontend": frontend_id,
            **({"admin_url": admin_url} if admin_url else {}),
        }

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("GET", "/cluster", self.cluster),
            ApiRoute("GET", "/cluster/events", self.events),
        ]

    async def cluster(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json(await self._view(Viewer.of(caller))))

    async def events(self, request: Request, caller: Caller) -> ClusterEvents:
        async def look() -> dict[str, Any]:
            """The key may have been taken out since."""
            now = self._callers.caller(request.headers, "http")
            return await self._view(Viewer.of(now))

        return ClusterEvents(await self._view(Viewer.of(caller)), look, self._over)

    async def _view(self, viewer: Viewer) -> dict[str, Any]:
        """Made once for all who may see the same. Raises ServiceUnavailable."""
        look = await self._board.look()
        if look is not self._seen:
            self._seen, self._views = look, {}
        if viewer not in self._views:
            self._views[viewer] = cluster_view(look, viewer, self._head)
        return self._views[viewer]
