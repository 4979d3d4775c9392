"""`/v1/batches`: create, list, look at and cancel."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.stored.batches.batches import Batches
from frontend.text.event_writer import encode_json

_MAX_BODY_BYTES = 256 * 1024


class BatchRoutes:
    """Handlers of the HTTP surface."""

    def __init__(self, batches: Batches, bodies: HttpBodies) -> None:
        self._batches = batches
        self._bodies = bodies

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("POST", "/v1/batches", self.create),
            ApiRoute("GET", "/v1/batches", self.list_batches),
            ApiRoute("GET", "/v1/batches/{batch_id}", self.retrieve),
            ApiRoute("POST", "/v1/batches/{batch_id}/cancel", self.cancel),
        ]

    async def create(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller, _MAX_BODY_BYTES) as body:
            batch = await self._batches.create(body, caller)
        return json_response(encode_json(batch))

    async def list_batches(self, request: Request, caller: Caller) -> Response:
        return json_response(encode_json(await self._batches.all(request.query_params, caller)))

    async def retrieve(self, request: Request, caller: Caller) -> Response:
        batch = await self._batches.get(request.path_params["batch_id"], caller)
        return json_response(encode_json(batch))

    async def cancel(self, request: Request, caller: Caller) -> Response:
        batch = await self._batches.cancel(request.path_params["batch_id"], caller)
        return json_response(encode_json(batch))
