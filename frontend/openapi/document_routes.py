"""`GET /openapi.json`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.openapi.document import openapi_document
from frontend.routes.api_route import ApiRoute
from frontend.text.event_writer import encode_json


class DocumentRoutes:
    """The document is encoded once."""

    def __init__(self) -> None:
        self._document = encode_json(openapi_document(importlib.metadata.version("jetflock")))

    def routes(self) -> Sequence[ApiRoute]:
        return [ApiRoute("GET", "/openapi.json", self._get, is_open=True)]

    async def _get(self, request: Request, caller: Caller) -> Response:
        return json_response(self._document)
