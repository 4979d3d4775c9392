"""`/v1/models`: which models can be asked for, and how each does."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.routes.api_route import MODEL_PATHS, ApiRoute
from frontend.routes.model_object import ModelListing


class ModelRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, listing: ModelListing) -> None:
        self._listing = listing

    def routes(self) -> Sequence[ApiRoute]:
        return [
            *(ApiRoute("GET", path, self._list) for path in MODEL_PATHS),
            ApiRoute("GET", "/v1/models/{name:path}", self._get),
        ]

    async def _list(self, request: Request, caller: Caller) -> Response:
        return json_response(await self._listing.all())

    async def _get(self, request: Request, caller: Caller) -> Response:
        return json_response(await self._listing.one(request.path_params["name"]))
