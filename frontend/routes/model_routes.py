"""`/v1/models`: which models can be asked for, and how each does."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.models.model_directory import ModelDirectory
from frontend.routes.api_route import MODEL_PATHS, ApiRoute
from frontend.routes.model_object import model_list, model_object
from frontend.text.event_writer import encode_json


class ModelRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, models: ModelDirectory) -> None:
        self._models = models

    def routes(self) -> Sequence[ApiRoute]:
        return [
            *(ApiRoute("GET", path, self._list) for path in MODEL_PATHS),
            ApiRoute("GET", "/v1/models/{name:path}", self._get),
        ]

    async def _list(self, request: Request, caller: Caller) -> Response:
        return json_response(model_list(self._models))

    async def _get(self, request: Request, caller: Caller) -> Response:
        model = await self._models.find(request.path_params["name"])
        use_defaults = self._models.use_model_defaults
        return json_response(encode_json(model_object(model, use_model_defaults=use_defaults)))
