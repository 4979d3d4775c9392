"""`GET /openapi.json`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.http.error_response import json_response
from frontend.jobs.job import Caller
from frontend.openapi.document import openapi_document
from frontend.routes.api_route import ApiRoute
from frontend.text.event_writer import encode_json
from shared.machine.installation import own_version


class DocumentRoutes:
    """The document is made when somebody asks for it first, beside the event loop, and kept."""

    def routes(self) -> Sequence[ApiRoute]:
        return [ApiRoute("GET", "/openapi.json", self._get, is_open=True)]

    async def _get(self, request: Request, caller: Caller) -> Response:
        return json_response(await asyncio.to_thread(_encoded_document))


@functools.cache
def _encoded_document() -> bytes:
    return encode_json(openapi_document(own_version()))
