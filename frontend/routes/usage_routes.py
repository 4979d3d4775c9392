"""`GET /v1/usage`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from frontend.cluster.usage import UsageBook, UsageQuery
from frontend.cluster.view import Viewer
from frontend.http.error_response import json_response
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.routes.api_route import ApiRoute
from frontend.text.event_writer import encode_json
from shared.errors import InvalidRequest


class UsageRoutes:
    """Handlers of the HTTP surface, and the answer over NATS."""

    def __init__(self, book: UsageBook, inference: Inference) -> None:
        self._book = book
        self._inference = inference

    def routes(self) -> Sequence[ApiRoute]:
        return [ApiRoute("GET", "/v1/usage", self.usage)]

    async def usage(self, request: Request, caller: Caller) -> Response:
        return json_response(await self.answer(dict(request.query_params), caller))

    async def answer(self, body: dict[str, Any], caller: Caller) -> bytes:
        """`body` as a query has it.

        Raises RateLimited, InvalidRequest, NotFound or ServiceUnavailable.
        """
        self._inference.admit_call(caller)
        for name, value in body.items():
            if not isinstance(value, str):
                raise InvalidRequest(f"'{name[:40]}' must be text", param=name[:40])
        query = UsageQuery.read(body)
        return encode_json(await self._book.usage(query, Viewer.of(caller)))
