"""`GET /` and the libraries that the page loads by need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from frontend.jobs.job import Caller
from frontend.page.page_document import PageDocument
from frontend.page.page_libraries import ROUTE
from frontend.routes.api_route import ApiRoute


class PageRoutes:
    """Handlers of the HTTP surface, open to all: the page itself asks for a key."""

    def __init__(self, page: PageDocument) -> None:
        self._page = page

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("GET", "/", self._get_page, is_open=True),
            ApiRoute("GET", ROUTE, self._get_library, is_open=True),
        ]

    async def _get_page(self, request: Request, caller: Caller) -> Response:
        return await asyncio.to_thread(self._page.response, request)  # the first one makes it

    async def _get_library(self, request: Request, caller: Caller) -> Response:
        return self._page.libraries.response(request)
